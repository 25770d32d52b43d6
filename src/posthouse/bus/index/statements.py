"""The named SQL statements of the index."""

from __future__ import annotations

from posthouse.sqlite.statements import Statements

SQL = Statements("posthouse.bus.index", "index.sql")
