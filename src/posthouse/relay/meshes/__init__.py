"""Meshes: who is in them, and what they may do there."""
