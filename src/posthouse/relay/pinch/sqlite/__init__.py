"""Pinch envelopes on SQLite."""

from posthouse.relay.pinch.sqlite.component import PINCH
from posthouse.relay.pinch.sqlite.reads import SqlitePinchReads
from posthouse.relay.pinch.sqlite.unit import SqlitePinch

__all__ = ["PINCH", "SqlitePinch", "SqlitePinchReads"]
