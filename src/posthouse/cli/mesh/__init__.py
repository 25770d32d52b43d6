"""`posthouse mesh`: who works together on a relay."""

from posthouse.cli.mesh.noun import app

__all__ = ["app"]
