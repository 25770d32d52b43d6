"""Fences: refuse the late write of a former lock holder.

    fence = Fence("/srv/db/main.fence")
    fence.admit(token)             # before reading what the write depends on
    with fence.guard(token):       # around the write

A fence stores the highest token it has seen, durably, and refuses lower ones; `strict` admits each token once. The
token is stored before the guarded body runs, so a crash can only make the fence stricter. Its storage is a file
(`posthouse-fence-v1 TOKEN`, written atomically under a kernel lock; to change the format: new version name, read
both, docs/how-to/locks.md) or a row of the protected database (FenceTable), inside the caller's transaction.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from posthouse.files import locked, open_nofollow, write_atomic
from posthouse.model.errors import error
from posthouse.model.lease import fence_admits
from posthouse.model.limits import INT64_MAX


class TokenSlot(Protocol):
    """Exclusive access to the stored token of one fence."""

    def read(self) -> int | None:
        """Return the highest token seen, or None before the first one."""
        ...

    def write(self, token: int) -> None:
        """Store a higher token durably: when this returns, no crash can undo it."""
        ...


class TokenStorage(Protocol):
    """Durable storage of one token."""

    @property
    def name(self) -> str:
        """Name of the fence in errors."""
        ...

    def open(self) -> AbstractContextManager[TokenSlot]:
        """Open the slot for exclusive access."""
        ...


class Fence:
    """Guards one resource that a lock protects."""

    def __init__(self, place: str | os.PathLike[str] | TokenStorage, *, strict: bool = False) -> None:
        """Make a fence whose token is stored in a file (given by its path) or in a table (`FenceTable`)."""
        self._storage: TokenStorage = FenceFile(place) if isinstance(place, str | os.PathLike) else place
        self._is_strict = strict

    def admit(self, token: int) -> None:
        """Admit a token and store it, or raise fence_stale."""
        with self.guard(token):
            pass

    @contextmanager
    def guard(self, token: int) -> Iterator[None]:
        """Admit a token and keep other writers out while the body runs; or raise fence_stale.

        The token is stored before the body runs: a crash in it can only make the fence stricter.
        """
        if type(token) is not int or not 1 <= token <= INT64_MAX:
            raise error("token_not_positive", token=token)
        with self._storage.open() as slot:
            last_seen = slot.read()
            if not fence_admits(last_seen, token, self._is_strict):
                raise error("fence_stale", resource=self._storage.name, token=token, last_seen=last_seen)
            if token != last_seen:
                slot.write(token)
            yield

    def last_seen(self) -> int | None:
        """Return the highest token that was admitted, or None before the first one."""
        with self._storage.open() as slot:
            return slot.read()


_CONTENT = re.compile(rb"posthouse-fence-v1 ([1-9][0-9]{0,18})\n")
_MAX_BYTES = 64


class FenceFile:
    """Stores the token in a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._lock_path = self._path.with_name(f"{self._path.name}.lock")

    @property
    def name(self) -> str:
        return str(self._path)

    @contextmanager
    def open(self) -> Iterator[_FileSlot]:
        """Wait until no other process uses the fence, and hold it."""
        with locked(self._lock_path):
            yield _FileSlot(self._path)


class _FileSlot:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int | None:
        try:
            fd = open_nofollow(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            found = _CONTENT.fullmatch(file.read(_MAX_BYTES))
        if found is None:
            raise error("fence_damaged", path=str(self._path))
        return int(found[1])

    def write(self, token: int) -> None:
        write_atomic(self._path, b"posthouse-fence-v1 %d\n" % token)


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class Connection(Protocol):
    """The part of a database connection that a FenceTable needs."""

    def execute(self, sql: str, parameters: Sequence[Any], /) -> Any:
        """Run a statement and return its cursor."""
        ...


class FenceTable:
    """Stores the token of one fence in a row."""

    def __init__(
        self, connection: Connection, fence: str, *, table: str = "posthouse_fences", placeholder: str = "?"
    ) -> None:
        """Make the storage of `fence`; PostgreSQL's drivers use the placeholder `%s`."""
        if _NAME.fullmatch(table) is None:
            raise error("usage", text=f"{table!r} is not the name of a table")
        self._connection = connection
        self._fence = fence
        self._table = table
        self._placeholder = placeholder

    @property
    def name(self) -> str:
        return self._fence

    def create(self) -> None:
        """Create the table if it is missing."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self._table} (fence TEXT PRIMARY KEY, token BIGINT NOT NULL)", ()
        )

    @contextmanager
    def open(self) -> Iterator[_RowSlot]:
        """Open the row; the first statement locks it for this transaction."""
        yield _RowSlot(self._connection, self._table, self._fence, self._placeholder)


class _RowSlot:
    def __init__(self, connection: Connection, table: str, fence: str, placeholder: str) -> None:
        self._connection = connection
        self._table = table
        self._fence = fence
        self._placeholder = placeholder

    def read(self) -> int | None:
        # A write that changes nothing locks the row: no other transaction can decide by the same value.
        found = self._connection.execute(
            f"INSERT INTO {self._table} (fence, token) VALUES ({self._placeholder}, 0) "
            f"ON CONFLICT (fence) DO UPDATE SET token = {self._table}.token RETURNING token",
            (self._fence,),
        ).fetchone()
        return found[0] or None

    def write(self, token: int) -> None:
        self._connection.execute(
            f"UPDATE {self._table} SET token = {self._placeholder} WHERE fence = {self._placeholder}",
            (token, self._fence),
        )
