"""Copy the tables of a relay's store between a SQLite file and a database of PostgreSQL, and prove the copy by digests.

The names and types of columns come from the two databases, so a new table needs no change here. The tables and columns
that only one of them has are listed below. A value differs at most in its type: a name that may hold any text is bytes
on the server, a flag is an integer in the file. Each table has a digest over its rows in the order of its primary key,
in which both databases return them; the digest of the copy is computed from what the target returns. The caller holds
locks and transactions, so a copy is seen whole or not at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import apsw
import msgspec
from blake3 import blake3

from posthouse.journal.append import SQL as JOURNAL_SQL
from posthouse.model.errors import error
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.relay.store.postgresql.pg_journal import MOVING_SQL
from posthouse.relay.store.sqlite.event_index import index_all_ids, index_rest
from posthouse.relay.store.sqlite.lock_requests import save_requests, unwritten_requests
from posthouse.relay.store.sqlite.queries import EVENTS_SQL

#: what belongs to one database: its schema, what triggers write, the mark of a store that was moved, the index of ids,
#: how far the tables go that a file writes in bulk, and its changes for followers, who take a new copy
_OWN = frozenset({"schema_versions", "audience_versions", "moved_to", "sqlite_sequence", "event_ids"}) | {
    "index_state",
    "lock_requests_state",
    "change_stream",
    "changesets",
}
#: the knowledge of relays that share a database about each other
_OF_RELAYS = ("relays", "leader", "store_owner", "spent_challenges")
#: tables whose rows the server keeps in parts -> the view that has the whole rows, and the other parts
_IN_PARTS = {"mesh_usage": ("current_usage", ("usage_changes",))}
#: counters that only the file has: they start at zero, and housekeeping brings them up to date
_ONLY_IN_FILE = {"journal_state": ("body_bytes", "counted_through")}
_ROWS_PER_FETCH = 2_000
_encode = msgspec.msgpack.Encoder().encode
Row = Sequence[Any]


@dataclass(frozen=True)
class Table:
    """A table that both stores have, with the columns that both have."""

    name: str
    columns: tuple[str, ...]
    #: columns of the primary key, in its order
    key: tuple[str, ...]
    #: places of columns that are bytes on the server and text in the file
    packed: tuple[int, ...]
    #: places of columns that are booleans on the server and integers in the file
    flags: tuple[int, ...]
    #: columns that the server numbers by itself
    numbered: tuple[str, ...]

    def select(self, source: str) -> str:
        """Return the statement that reads all rows, of the table or of a view, in the order of the digest."""
        order = f" ORDER BY {', '.join(self.key)}" if self.key else ""
        return f"SELECT {', '.join(self.columns)} FROM {source}{order}"

    def to_server(self, row: Row) -> Row:
        """Return a row of the file as the server keeps it."""
        if not self.packed and not self.flags:
            return row
        values = list(row)
        for place in self.packed:
            values[place] = None if values[place] is None else values[place].encode()
        for place in self.flags:
            values[place] = None if values[place] is None else bool(values[place])
        return values

    def to_file(self, row: Row) -> Row:
        """Return a row of the server as the file keeps it."""
        if not self.packed and not self.flags:
            return row
        values = list(row)
        for place in self.packed:
            values[place] = None if values[place] is None else values[place].decode()
        for place in self.flags:
            values[place] = None if values[place] is None else int(values[place])
        return values


class TableDigest(NamedTuple):
    """The rows of a table, and the BLAKE3 digest over them."""

    rows: int
    digest: str


Digests = dict[str, TableDigest]


def common_tables(db: apsw.Connection, session: ServerConnection) -> list[Table]:
    """Return the tables of a store in an order in which rows never point to a missing row."""
    on_server = defaultdict(list)
    for name, *column in session.rows(MOVING_SQL.columns):
        on_server[name].append(column)
    names = {name for (name,) in db.execute(JOURNAL_SQL.all_tables)} - _OWN
    order = TopologicalSorter({name: set[str]() for name in sorted(names)})
    for name, target in session.rows(MOVING_SQL.references):
        if name in names:
            order.add(name, target)
    return [_table(db, name, on_server[name]) for name in order.static_order()]


def _table(db: apsw.Connection, name: str, on_server: list[list[Any]]) -> Table:
    found: Any = db.execute(EVENTS_SQL.columns_of, (name,)).fetchall()
    types: dict[str, str] = dict(found)
    shared = [column for column in on_server if column[0] in types]
    columns = tuple(column[0] for column in shared)
    if types.keys() - {*columns, *_ONLY_IN_FILE.get(name, ())}:
        raise ValueError(f"the table {name} of PostgreSQL lacks {sorted(types.keys() - set(columns))}")
    key = sorted((place, column) for column, _type, place, _numbered in shared if place)
    return Table(
        name,
        columns,
        tuple(column for _place, column in key),
        tuple(at for at, column in enumerate(shared) if column[1] == "bytea" and types[column[0]] == "TEXT"),
        tuple(at for at, column in enumerate(shared) if column[1] == "boolean"),
        tuple(column for column, _type, _place, is_numbered in shared if is_numbered),
    )


def copy_to_server(db: apsw.Connection, session: ServerConnection) -> Digests:
    """Replace the store of the server, in its open transaction, by that of the file; raise copy_differs.

    What the file writes in bulk is completed first: on the server it is written with each event and grant.
    """
    db.execute("BEGIN IMMEDIATE")
    index_rest(db)
    save_requests(db, unwritten_requests(db))
    db.execute("COMMIT")
    tables = common_tables(db, session)
    parts = [part for _view, others in _IN_PARTS.values() for part in others]
    names = [table.name for table in tables] + [*parts, *_OF_RELAYS, "audience_versions", "moved_to"]
    session.queue(f"TRUNCATE {', '.join(names)}")
    digests: Digests = {}
    for table in tables:
        source = _Hashing(_file_rows(db, table))
        statement = f"COPY {table.name} ({', '.join(table.columns)}) FROM STDIN"
        session.copy_rows(statement, map(table.to_server, source))
        for column in table.numbered:
            session.queue(
                f"SELECT setval(pg_get_serial_sequence('{table.name}', '{column}'), coalesce(max({column}), 0) + 1,"
                f" false) FROM {table.name}"
            )
        digests[table.name] = source.digest
    _require_equal(digests, {table.name: _Hashing(_server_rows(session, table)).finish() for table in tables})
    return digests


def copy_to_file(session: ServerConnection, db: apsw.Connection) -> Digests:
    """Replace the store of the file, in its open transaction, by that of the server; raise copy_differs."""
    tables = common_tables(db, session)
    for table in reversed(tables):
        db.execute(f"DELETE FROM {table.name}")
    digests: Digests = {}
    for table in tables:
        source = _Hashing(_server_rows(session, table))
        counters = _ONLY_IN_FILE.get(table.name, ())
        values = ["?"] * len(table.columns) + ["0"] * len(counters)
        columns = ", ".join((*table.columns, *counters))
        db.executemany(f"INSERT INTO {table.name} ({columns}) VALUES ({', '.join(values)})", source)
        digests[table.name] = source.digest
    index_all_ids(db)
    db.execute(EVENTS_SQL.mark_indexed)
    save_requests(db, {})
    _require_equal(digests, {table.name: _Hashing(_file_rows(db, table)).finish() for table in tables})
    return digests


def total_digest(digests: Digests) -> str:
    """Return one digest for all tables."""
    return blake3(_encode(sorted((name, *each) for name, each in digests.items()))).hexdigest()


class _Hashing:
    """Passes rows on, in the form of the file, and computes their digest."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows
        self._hasher = blake3()
        self._count = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self._hasher.update(_encode(row))
            self._count += 1
            yield row

    @property
    def digest(self) -> TableDigest:
        return TableDigest(self._count, self._hasher.hexdigest())

    def finish(self) -> TableDigest:
        """Return the digest of all rows."""
        for _row in self:
            pass
        return self.digest


def _file_rows(db: apsw.Connection, table: Table) -> Iterator[Row]:
    return iter(db.execute(table.select(table.name)))


def _server_rows(session: ServerConnection, table: Table) -> Iterator[Row]:
    cursor = f"rows_of_{table.name}"  # a separate name: a prepared FETCH always returns the same columns
    source, _parts = _IN_PARTS.get(table.name, (table.name, ()))
    session.queue(f"DECLARE {cursor} NO SCROLL CURSOR FOR {table.select(source)}")
    while rows := session.rows(f"FETCH {_ROWS_PER_FETCH} FROM {cursor}"):
        yield from map(table.to_file, rows)
    session.queue(f"CLOSE {cursor}")


def _require_equal(source: Digests, copy: Digests) -> None:
    for name, digest in source.items():
        if copy[name] != digest:
            raise error("copy_differs", table=name, rows=digest.rows, copied=copy[name].rows)
