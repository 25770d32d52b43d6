"""The component of the inbox's schema, and its statements."""

from __future__ import annotations

from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import Statements

_PACKAGE = "posthouse.daemon.inbox"
INBOX = Component("inbox", _PACKAGE)
SQL = Statements(_PACKAGE, "inbox.sql")
