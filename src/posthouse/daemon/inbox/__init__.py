"""The inbox of a daemon."""
