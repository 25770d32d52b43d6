"""A fence's memory in a table of the database that the lock protects.

Runs on the caller's connection, inside the caller's transaction: the token and the protected rows commit together or
not at all, and the row of the fence, locked by its update, keeps others out until then. Works with any connection
that has `execute(sql, parameters)` and speaks SQLite's or PostgreSQL's upsert. Committing is the caller's work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from posthouse.model.errors import error

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class Connection(Protocol):
    """What a database connection has to offer."""

    def execute(self, sql: str, parameters: Sequence[Any], /) -> Any:
        """Run a statement and return its cursor."""
        ...


class FenceTable:
    """Remembers the token of one fence in a row."""

    def __init__(
        self, connection: Connection, fence: str, *, table: str = "posthouse_fences", placeholder: str = "?"
    ) -> None:
        """Make a memory for `fence`; PostgreSQL's driver wants `%s` as placeholder."""
        if _NAME.fullmatch(table) is None:
            raise error("usage", text=f"{table!r} is not the name of a table")
        self._connection = connection
        self._fence = fence
        self._table = table
        self._mark = placeholder

    @property
    def name(self) -> str:
        return self._fence

    def create(self) -> None:
        """Make the table unless it is there."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (fence TEXT PRIMARY KEY, token BIGINT NOT NULL)", ()
        )

    @contextmanager
    def open(self) -> Iterator[_RowSlot]:
        """Reach the row; the first statement takes it for this transaction."""
        yield _RowSlot(self._connection, self._table, self._fence, self._mark)


class _RowSlot:
    def __init__(self, connection: Connection, table: str, fence: str, mark: str) -> None:
        self._connection = connection
        self._table = table
        self._fence = fence
        self._mark = mark

    def read(self) -> int | None:
        # a write that changes nothing: it takes the row, so that no other transaction decides by the same value
        found = self._connection.execute(
            f"INSERT INTO {self._table} (fence, token) VALUES ({self._mark}, 0) "
            f"ON CONFLICT (fence) DO UPDATE SET token = {self._table}.token RETURNING token",
            (self._fence,),
        ).fetchone()
        return found[0] or None

    def write(self, token: int) -> None:
        self._connection.execute(
            f"UPDATE {self._table} SET token = {self._mark} WHERE fence = {self._mark}", (token, self._fence)
        )
