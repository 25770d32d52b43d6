"""`posthouse pipeline`."""

from posthouse.cli.pipeline.noun import app

__all__ = ["app"]
