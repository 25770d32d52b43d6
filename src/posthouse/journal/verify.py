"""Verify a store: the integrity of the database, then the rules of every journal.

Stores add their own rules; a finding is a sentence. All rules read one snapshot, so a running store can be verified.
Nothing is changed. SQLite's own check gives up at the first page that it cannot read; `find_damage` walks every tree of
the database on its own, so that an operator learns what is lost and what an index can be rebuilt from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from posthouse.journal.append import SQL
from posthouse.journal.read import read_state
from posthouse.journal.records import RECORD_TYPES
from posthouse.model.errors import Fatal, PosthouseError
from posthouse.sqlite.connection import open_reader
from posthouse.sqlite.schema import APPLICATION_ID
from posthouse.sqlite.store_lock import refuse_half_restored, shared_store_lock

Rule = Callable[[apsw.Connection], Iterator[str]]
_UNUSABLE = ("store_not_ours", "store_half_restored")
#: Errors that mean damage of the file, not a mistake in a statement.
DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.IOError)
_TREES = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE type IN ('table', 'index') ORDER BY type DESC, name"


@dataclass(frozen=True)
class Damage:
    """A tree that cannot be read completely."""

    table: str
    #: None: the table itself
    index: str | None
    reason: str

    def __str__(self) -> str:
        name = f"the table {self.table}" if self.index is None else f"the index {self.index} of the table {self.table}"
        return f"damage: {name} cannot be read: {self.reason}"


def find_damage(db: apsw.Connection) -> Iterator[Damage]:
    """Yield each table and each index that cannot be read."""
    try:
        trees: list[Any] = db.execute(_TREES).fetchall()
    except DAMAGE as exc:
        yield Damage("sqlite_schema", None, str(exc))
        return
    for kind, name, table, sql in trees:
        try:
            if kind == "table":
                for _ in db.execute(f'SELECT * FROM "{name}" NOT INDEXED'):
                    pass
            else:
                db.execute(f'SELECT count(*) FROM "{table}" INDEXED BY "{name}" {_condition(sql)}').fetchall()
        except DAMAGE as exc:
            yield Damage(table, None if kind == "table" else name, str(exc))


def _condition(sql: str | None) -> str:
    """Return the WHERE clause of a partial index: SQLite uses it only for queries with the same one."""
    found = re.search(r"\sWHERE\s.*", sql or "", re.DOTALL | re.IGNORECASE)
    return found[0] if found else ""


def verify_store(path: Path, rules: tuple[Rule, ...] = ()) -> list[str]:
    """Return the findings about the store at `path`; an empty list means that it is valid."""
    try:
        with shared_store_lock(path):
            refuse_half_restored(path)
            db = open_reader(path)
            try:
                return list(verify_database(db, rules))
            finally:
                db.close()
    except PosthouseError as failure:
        if failure.code in _UNUSABLE or isinstance(failure, Fatal):
            return [str(failure)]
        raise


def verify_database(db: apsw.Connection, rules: tuple[Rule, ...] = ()) -> Iterator[str]:
    """Yield the findings about an open store."""
    db.execute("BEGIN")
    try:
        damage = list(_integrity(db))
        yield from damage
        if not damage:  # the rules would only fail on the same damage
            for rule in (_sequence, _snapshot, _time, _types, _bodies, _epochs, *rules):
                yield from rule(db)
    except DAMAGE as exc:
        yield from [str(each) for each in find_damage(db)] or [f"the database is damaged: {exc}"]
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _integrity(db: apsw.Connection) -> Iterator[str]:
    for (text,) in db.execute("PRAGMA integrity_check(20)"):
        if text != "ok":
            yield f"integrity: {text}"
    for row in db.execute("PRAGMA foreign_key_check"):
        yield f"foreign key: a row of {row[0]} points to a missing row of {row[2]}"
    if db.pragma("application_id") != APPLICATION_ID:
        yield "integrity: the application id is not that of a posthouse store"
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    for missing in sorted({"journal", "journal_state", "epochs", "schema_versions"} - tables):
        yield f"integrity: the table {missing} is missing"


def _sequence(db: apsw.Connection) -> Iterator[str]:
    state = db.execute(SQL.state).fetchone()
    if state is None:
        yield "journal: its state is missing"
        return
    head = db.execute(SQL.head).get
    pruned_through, _snapshot, body_bytes = state
    rows, oldest, newest, actual_bytes = db.execute(SQL.count_rows).fetchone() or (0, 0, 0, 0)
    if (gap := db.execute(SQL.first_gap).get) is not None:
        yield f"journal: there is a gap before seq {gap}"
    if newest != head and rows:
        yield f"journal: the newest record is {newest}, but the head is {head}"
    if rows != head - pruned_through:
        yield f"journal: {rows} records, but seqs {pruned_through + 1}..{head} should exist"
    if rows and oldest != pruned_through + 1:
        yield f"journal: the oldest record is {oldest}, but the horizon is {pruned_through}"
    if body_bytes != actual_bytes:
        yield f"journal: counts {body_bytes} bytes of bodies, but the rows have {actual_bytes}"


def _snapshot(db: apsw.Connection) -> Iterator[str]:
    pruned_through, snapshot_seq, _body_bytes = read_state(db)
    if not pruned_through:
        return
    if snapshot_seq is None:
        yield "journal: pruned without a snapshot"
    elif db.execute(SQL.type_of, (snapshot_seq,)).get != "journal.snapshot":
        yield f"journal: the snapshot {snapshot_seq}, from which replay starts, is missing"


def _time(db: apsw.Connection) -> Iterator[str]:
    if (seq := db.execute(SQL.time_going_back).get) is not None:
        yield f"journal: time goes back at seq {seq}"


def _types(db: apsw.Connection) -> Iterator[str]:
    for (name,) in db.execute(SQL.types):
        if name not in RECORD_TYPES:
            yield f"journal: records of the unknown type {name!r}"


def _bodies(db: apsw.Connection) -> Iterator[str]:
    if (seq := db.execute(SQL.broken_body).get) is not None:
        yield f"journal: the body of seq {seq} is not JSON"


def _epochs(db: apsw.Connection) -> Iterator[str]:
    known: dict[str, int] = {}
    head = db.execute(SQL.head).get
    for epoch, parent, fork_seq, _started in db.execute(SQL.all_epochs):
        if parent is not None and parent not in known:
            yield f"epochs: {epoch} forks from the unknown epoch {parent}"
        if known and fork_seq < max(known.values()):
            yield f"epochs: {epoch} forks at {fork_seq}, before an earlier fork"
        if fork_seq > head:
            yield f"epochs: {epoch} forks at {fork_seq}, above the head {head}"
        known[epoch] = fork_seq
    if not known:
        yield "epochs: the store has none"
