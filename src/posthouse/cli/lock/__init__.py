"""`posthouse lock`: hold locks of a relay, and run commands under them."""

from posthouse.cli.lock.noun import app

__all__ = ["app"]
