"""The index of events by their terms, and the usage of meshes: written in bulk, some commits after the events.

The terms of a plain event lie on four pages and its counter on a fifth: more than the event and its record themselves.
So fewer than INDEX_EVENTS of the newest events are not in the index; `index_state` says how far it goes, in the same
transaction, and queries read the events above it one by one. Everything here can be rebuilt from the events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.model.event import Event, decode_event, read_fence_tag
from posthouse.relay.store.event_rows import EventRow, Usage, event_address, event_terms
from posthouse.relay.store.removing_events import sum_usage
from posthouse.relay.store.sqlite.queries import EVENTS_SQL
from posthouse.sqlite.transaction import BulkInsert

INDEX_EVENTS = 128  # a query reads fewer than these one by one, which takes it a tenth of a millisecond
INSERT_TERMS = BulkInsert(EVENTS_SQL.insert_terms, 2)
INSERT_CURRENT = BulkInsert(EVENTS_SQL.insert_current, 4, EVENTS_SQL.keep_larger)
_ROWS_PER_READ = 1_000
#: (seq, JSON, mesh) of an event
Content = tuple[int, bytes, str]


class EventIndex:
    """Indexes the events of one writer; belongs to its transactions."""

    def __init__(self, tx: JournalTransaction) -> None:
        self._tx = tx
        self._db = tx.db
        #: (term, seq) of the events that are not indexed
        self._terms: list[tuple[bytes, int]] = []
        #: (mesh, 1, bytes) of each of them
        self._usage: list[tuple[str, int, int]] = []
        #: False if the store has events that are not indexed and not in these lists
        self._is_complete = False

    def add(self, seqs: Sequence[int], rows: Sequence[EventRow]) -> None:
        """Index events that this transaction has written, now or with later ones."""
        self._tx.undo.append(self._forget)
        self._terms += [(term, seq) for seq, row in zip(seqs, rows, strict=True) for term in row.index_terms]
        self._usage += [(row.mesh, 1, len(row.raw)) for row in rows]
        if not self._is_complete or len(self._usage) >= INDEX_EVENTS:
            self.write()

    def write(self) -> None:
        """Index all events."""
        if self._is_complete and not self._usage:
            return
        self._tx.undo.append(self._forget)
        if self._is_complete:
            INSERT_TERMS.run(self._db, sorted(self._terms))  # in the order of the index: neighbours share their pages
            self._db.executemany(EVENTS_SQL.count_usage, sum_usage(self._usage))
            self._db.execute(EVENTS_SQL.mark_indexed)
        else:
            index_rest(self._db)
        self._terms, self._usage, self._is_complete = [], [], True

    def usage_of(self, mesh: str) -> Usage:
        """Return what a mesh has stored, with the events of this transaction."""
        if not self._is_complete:
            self.write()
        found: Any = self._db.execute(EVENTS_SQL.usage_of, (mesh,)).fetchone()
        counted = Usage(*(found or (0, 0)))
        sizes = [size for name, _one, size in self._usage if name == mesh]
        return Usage(counted.events + len(sizes), counted.bytes + sum(sizes))

    def rebuild(self) -> None:
        """Rebuild everything that is derived from events."""
        self._tx.undo.append(self._forget)
        reindex(self._db)
        self._terms, self._usage, self._is_complete = [], [], True

    def _forget(self) -> None:
        self._terms, self._usage, self._is_complete = [], [], False


def index_rest(db: apsw.Connection) -> None:
    """Index the events that are not indexed yet, in the open transaction."""
    db.execute(EVENTS_SQL.count_unindexed)
    for page in _pages_after(db, db.execute(EVENTS_SQL.indexed_through).get):
        INSERT_TERMS.run(
            db, sorted([entry for seq, raw, mesh in page for entry in _terms(seq, decode_event(raw), mesh)])
        )
    db.execute(EVENTS_SQL.mark_indexed)


def reindex(db: apsw.Connection) -> None:
    """Rebuild the indexes of terms, of current events and of fenced events; count the events that are not counted."""
    db.execute(EVENTS_SQL.clear_fenced)
    db.execute(EVENTS_SQL.clear_terms)
    db.execute(EVENTS_SQL.clear_current)
    db.execute(EVENTS_SQL.count_unindexed)
    for page in _pages_after(db, 0):
        _index(db, page)
    INSERT_CURRENT.run(db, db.execute(EVENTS_SQL.erased_versions).fetchall())  # they keep their place
    db.execute(EVENTS_SQL.mark_indexed)


def _pages_after(db: apsw.Connection, seq: int) -> Iterator[list[Content]]:
    while page := _read_page(db, seq):
        yield page
        seq = page[-1][0]


def _read_page(db: apsw.Connection, seq: int) -> list[Any]:
    return db.execute(EVENTS_SQL.events_after, (seq, _ROWS_PER_READ)).fetchall()


def _terms(seq: int, event: Event, mesh: str) -> list[tuple[bytes, int]]:
    return [(term, seq) for term in event_terms(event, mesh, event_address(event))]


def _index(db: apsw.Connection, page: list[Content]) -> None:
    terms, current, fenced = [], [], []
    for seq, raw, mesh in page:
        event = decode_event(raw)
        terms += _terms(seq, event, mesh)
        if (address := event_address(event)) is not None:
            current.append((address, event.created_at_ns, bytes.fromhex(event.id), seq))
            if (fence := read_fence_tag(event)) is not None:
                fenced.append((seq, mesh, fence.resource, fence.token))
    INSERT_TERMS.run(db, sorted(terms))
    INSERT_CURRENT.run(db, current)
    db.executemany(EVENTS_SQL.insert_fenced, fenced)
