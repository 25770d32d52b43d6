"""Measuring how fast queues empty: readers with backlogs, synced confirmations."""
