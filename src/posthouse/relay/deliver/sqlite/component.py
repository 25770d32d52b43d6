"""The component of the relay's schema that holds deliveries, and its statements."""

from __future__ import annotations

from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import Statements

_PACKAGE = "posthouse.relay.deliver.sqlite"
DELIVERIES = Component("deliveries", _PACKAGE)
ACCEPT_SQL = Statements(_PACKAGE, "accept.sql")
CLOSE_SQL = Statements(_PACKAGE, "close.sql")
CHECK_SQL = Statements(_PACKAGE, "check.sql")
READ_SQL = Statements(_PACKAGE, "read.sql")
