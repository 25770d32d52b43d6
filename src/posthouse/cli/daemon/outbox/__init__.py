"""`posthouse daemon outbox`."""

from posthouse.cli.daemon.outbox.noun import app

__all__ = ["app"]
