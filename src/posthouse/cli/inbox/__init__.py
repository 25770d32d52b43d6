"""`posthouse inbox`."""

from posthouse.cli.inbox.noun import app

__all__ = ["app"]
