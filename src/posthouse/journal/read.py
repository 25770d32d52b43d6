"""Read the journal in seq order, in short pages; its state and its epochs, the random names of its histories.

A new store starts its first epoch; a restore starts a new one where the backup ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import NamedTuple

import apsw
import msgspec

from posthouse.journal.append import SQL
from posthouse.journal.cursor import Extent
from posthouse.journal.digest import Record


def begin_first_epoch(db: apsw.Connection, wall_ns: int) -> None:
    """Start the first epoch of a new store; another process may do so at the same time."""
    if db.execute(SQL.current_epoch).fetchone():
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        if not db.execute(SQL.current_epoch).fetchone():
            db.execute(SQL.add_epoch, (secrets.token_hex(16), None, 0, wall_ns))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def fork_epoch(db: apsw.Connection, wall_ns: int) -> str:
    """Start a new epoch at the head of this (restored) store, inside the caller's transaction."""
    parent, _, _ = db.execute(SQL.current_epoch).fetchone() or (None, None, 0)
    epoch = secrets.token_hex(16)
    db.execute(SQL.add_epoch, (epoch, parent, db.execute(SQL.head).get, wall_ns))
    return epoch


class JournalState(NamedTuple):
    """The row of journal_state; its size counts the records that housekeeping has seen."""

    pruned_through: int = 0
    #: seq of the snapshot that replaces the pruned prefix
    snapshot_seq: int | None = None
    body_bytes: int = 0


def read_state(db: apsw.Connection) -> JournalState:
    """Return the state of the journal; if the row is missing, the state of an empty journal."""
    return JournalState(*(db.execute(SQL.state).fetchone() or ()))


def read_extent(db: apsw.Connection) -> Extent:
    """Return epoch, horizon and head of one snapshot."""
    epochs = [(epoch, parent, fork_seq) for epoch, parent, fork_seq, _started in db.execute(SQL.all_epochs)]
    epoch, _parent, fork_seq = epochs[-1] if epochs else ("", None, 0)
    return Extent(epoch, fork_seq, read_state(db).pruned_through, db.execute(SQL.head).get, ancestors(epochs))


def ancestors(epochs: list[tuple[str, str | None, int]]) -> tuple[tuple[str, int], ...]:
    """Return each former epoch of this store with the last seq that it shares with the current one."""
    by_name = {epoch: (parent, fork_seq) for epoch, parent, fork_seq in epochs}
    found: list[tuple[str, int]] = []
    parent, shared = by_name[epochs[-1][0]] if epochs else (None, 0)
    while parent is not None:
        found.append((parent, shared))
        parent, fork_seq = by_name.get(parent, (None, 0))
        shared = min(shared, fork_seq)
    return tuple(found)


def read_after(db: apsw.Connection, seq: int, limit: int, types: Collection[str] | None = None) -> list[Record]:
    """Return up to `limit` records after `seq`, oldest first, of the given types or of all."""
    if types is None:
        rows = db.execute(SQL.read_after, (seq, limit))
    else:
        rows = db.execute(SQL.read_types_after, (seq, _names(types), limit))
    return [Record(*row) for row in rows]


def read_newest(
    db: apsw.Connection, after_seq: int, through_seq: int, limit: int, types: Collection[str] | None = None
) -> list[Record]:
    """Return up to `limit` records of a range, newest first, of the given types or of all."""
    bindings = (after_seq, through_seq, None if types is None else _names(types), limit)
    return [Record(*row) for row in db.execute(SQL.read_newest, bindings)]


def _names(types: Collection[str]) -> str:
    return msgspec.json.encode(sorted(types)).decode()
