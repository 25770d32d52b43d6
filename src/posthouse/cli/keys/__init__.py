"""`posthouse keys`: the identity of this node."""

from posthouse.cli.keys.noun import app

__all__ = ["app"]
