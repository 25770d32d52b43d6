"""`posthouse message`."""

from posthouse.cli.message.noun import app

__all__ = ["app"]
