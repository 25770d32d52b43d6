"""The named SQL statements of the bus."""

from __future__ import annotations

from posthouse.sqlite.statements import Statements

SQL = Statements("posthouse.bus", "bus.sql")
