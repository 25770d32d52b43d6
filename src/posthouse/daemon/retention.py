"""How long the journals of a daemon last: thirty days and a gigabyte, or what the operator has set.

The oldest records go first, some thousand at a time, each time below a snapshot of the counters. What the daemon
needs of the past lives in its own rows. With a lake nothing goes that the lake has not committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from posthouse.journal.append import JournalTransaction
from posthouse.journal.prune import prunable_through, prune_prefix
from posthouse.journal.store import Store
from posthouse.model.limits import DAY_S, JOURNAL_KEEP_DAYS, JOURNAL_MAX_BYTES, SECOND_NS
from posthouse.sqlite.statements import Statements

_SQL = Statements("posthouse.daemon", "retention.sql")
_AT_ONCE = 5_000  # records per transaction: some milliseconds
_LEAST = 500  # fewer are not worth a snapshot

#: what replay starts from
ReadState = Callable[[JournalTransaction], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Retention:
    """What of a journal may go."""

    keep_days: float = JOURNAL_KEEP_DAYS
    max_bytes: int = JOURNAL_MAX_BYTES
    #: set: only what the lake has committed
    lake: str | None = None


async def prune_journal(store: Store, retention: Retention, read_state: ReadState) -> int:
    """Remove the oldest records that are too old or too many; return how many went."""
    removed = 0
    while went := await store.writer.run(lambda tx: _prune(tx, retention, read_state)):
        removed += went
    return removed


def _prune(tx: JournalTransaction, retention: Retention, read_state: ReadState) -> int:
    extent: Any = tx.db.execute(_SQL.extent).fetchone()
    pruned_through, body_bytes = extent
    most = min(pruned_through + _AT_ONCE, prunable_through(tx, retention.lake))
    if body_bytes <= retention.max_bytes:
        horizon_ns = tx.now_ns - round(retention.keep_days * DAY_S * SECOND_NS)
        most = tx.db.execute(_SQL.newest_before, (pruned_through, most, horizon_ns)).get or 0
    if most - pruned_through < _LEAST:
        return 0
    return prune_prefix(tx, most, read_state(tx))
