"""The registry of error codes, one file per area."""
