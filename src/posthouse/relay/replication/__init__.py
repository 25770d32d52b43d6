"""Copies of a relay elsewhere: followers of its store, and mirrors of its events."""
