"""The index of a bus: its messages by subject, endpoint and status; derived, so it can be rebuilt."""
