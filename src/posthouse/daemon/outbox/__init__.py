"""The outbox of a daemon."""
