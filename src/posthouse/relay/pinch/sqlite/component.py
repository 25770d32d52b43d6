"""The component of the relay's schema that holds Pinch envelopes, and its statements."""

from __future__ import annotations

from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import Statements

_PACKAGE = "posthouse.relay.pinch.sqlite"
PINCH = Component("pinch", _PACKAGE)
SQL = Statements(_PACKAGE, "pinch.sql")
