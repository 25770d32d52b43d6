"""`posthouse queue`."""

from posthouse.cli.queue.noun import app

__all__ = ["app"]
