"""Meshes: their members, access rows, invites, topics, subscriptions and blocks."""
