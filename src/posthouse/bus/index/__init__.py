"""The index of a bus: which messages there are, by subject, endpoint and status; derived, rebuildable."""
