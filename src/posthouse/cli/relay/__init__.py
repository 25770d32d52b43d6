"""`posthouse relay`: run a relay and look after its store."""

from posthouse.cli.relay.noun import app

__all__ = ["app"]
