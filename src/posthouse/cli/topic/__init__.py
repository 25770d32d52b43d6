"""`posthouse topic`."""

from posthouse.cli.topic.noun import app

__all__ = ["app"]
