"""The host daemon: one long-lived process per user and mesh, with outbox, inbox and a local interface."""
