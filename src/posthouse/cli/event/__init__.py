"""`posthouse event`: signed events of a relay."""

from posthouse.cli.event.noun import app

__all__ = ["app"]
