"""`posthouse bus`: look at a bus of this machine and take part in it."""

from posthouse.cli.bus.noun import app

__all__ = ["app"]
