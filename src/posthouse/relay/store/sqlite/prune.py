"""Pruning what the lake provably holds: a prefix of the journal, and the content of the events in it.

The digest over the records, re-computed here, proves that the archive read the same rows. Current replaceable and
addressable events keep their content; memberships live in their own tables, and the snapshot carries them for
whoever replays the journal from here.
"""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from posthouse.journal.append import SQL as JOURNAL_SQL
from posthouse.journal.append import JournalTransaction
from posthouse.journal.prune import digest_range, prune_prefix
from posthouse.keys.token import same_token
from posthouse.model.errors import error
from posthouse.relay.deliver.sqlite import SqliteDeliveries
from posthouse.relay.deliver.sqlite.snapshot import unfinished
from posthouse.relay.locks.table import all_locks
from posthouse.relay.store.sqlite.mesh_rows import read_mesh_rows
from posthouse.relay.store.sqlite.plan import SQL
from posthouse.relay.store.sqlite.sweep import empty_events

MAX_RECORDS = 20_000  # of one call: about half a second in which nobody else can write


def prune(tx: JournalTransaction, from_seq: int, to_seq: int, digest: str) -> int:
    """Delete the records from_seq..to_seq, the oldest there are, and return how many."""
    pruned_through, _snapshot, _bytes = tx.db.execute(JOURNAL_SQL.state).fetchone() or (0, None, 0)
    oldest_seq = pruned_through + 1
    if from_seq != oldest_seq or not from_seq <= to_seq <= min(tx.head, pruned_through + MAX_RECORDS):
        raise error("prune_range_invalid", from_seq=from_seq, to_seq=to_seq, most=MAX_RECORDS, oldest_seq=oldest_seq)
    actual = digest_range(tx, from_seq, to_seq)
    if not same_token(digest, actual):
        raise error("digest_mismatch", from_seq=from_seq, to_seq=to_seq, actual=actual)
    prunable: list[Any] = tx.db.execute(SQL.prunable, (from_seq, to_seq)).fetchall()
    empty_events(tx.db, prunable)
    if prunable:
        SqliteDeliveries(tx).prune_records([seq for seq, _address in prunable])
    return prune_prefix(tx, to_seq, snapshot_state(tx.db))


def snapshot_state(db: apsw.Connection) -> dict[str, Any]:
    """Return what replay of the journal starts from."""
    state: dict[str, Any] = msgspec.to_builtins(read_mesh_rows(db))
    state["deliveries"] = unfinished(db)
    state["locks"] = [entry.snapshot() for entry in all_locks(db)]
    return state
