"""The host daemon: one long-lived process per user and mesh, with an outbox, an inbox and a local API."""
