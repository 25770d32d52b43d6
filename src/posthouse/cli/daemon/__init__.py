"""`posthouse daemon`."""

from posthouse.cli.daemon.noun import app

__all__ = ["app"]
