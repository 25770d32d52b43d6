"""The component of the outbox's schema, and its statements."""

from __future__ import annotations

from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import Statements

_PACKAGE = "posthouse.daemon.outbox"
OUTBOX = Component("outbox", _PACKAGE)
SQL = Statements(_PACKAGE, "outbox.sql")
