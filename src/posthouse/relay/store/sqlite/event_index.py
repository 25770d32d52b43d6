"""The index of events by id and by term, and the usage of meshes: written in bulk, some commits after the events.

The terms of a plain event are on four pages, its id on a fifth and its counter on a sixth: more than the event and its
record themselves. So the index lags behind by fewer than INDEX_EVENTS events; `index_state` records its position in the
same transaction, and queries read the events after it one by one. The writer, which looks up the id of every new event,
has the ids of those events in memory. Everything here can be rebuilt from the events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.model.event import Event, decode_event, read_fence_tag
from posthouse.relay.store.event_rows import EventRow, Usage, event_address, event_terms
from posthouse.relay.store.removing_events import sum_usage
from posthouse.relay.store.sqlite.queries import EVENTS_SQL, id_key
from posthouse.sqlite.transaction import BulkInsert

INDEX_EVENTS = 128  # a query reads fewer than these one by one, which takes it a tenth of a millisecond
INSERT_IDS = BulkInsert(EVENTS_SQL.insert_ids, 2)
INSERT_TERMS = BulkInsert(EVENTS_SQL.insert_terms, 2)
INSERT_CURRENT = BulkInsert(EVENTS_SQL.insert_current, 4, EVENTS_SQL.keep_larger)
PREFIX_BYTES = 8  # of an id in its index, as in the statements
_ROWS_PER_READ = 1_000
#: (seq, JSON, mesh) of an event
Content = tuple[int, bytes, str]


class EventIndex:
    """Indexes the events of one writer; belongs to its transactions."""

    def __init__(self, tx: JournalTransaction) -> None:
        self._tx = tx
        self._db = tx.db
        #: event id -> seq of the events that are not indexed
        self._seqs: dict[str, int] = {}
        #: (term, seq) of each of them
        self._terms: list[tuple[bytes, int]] = []
        #: (mesh, 1, bytes) of each of them
        self._usage: list[tuple[str, int, int]] = []
        #: False if the store has events that are not indexed and not listed here
        self._is_complete = False

    def add(self, seqs: Sequence[int], rows: Sequence[EventRow]) -> None:
        """Index events that this transaction has written, now or with later ones."""
        self._tx.undo.append(self._forget)
        self._seqs |= zip([row.event.id for row in rows], seqs, strict=True)
        self._terms += [(term, seq) for seq, row in zip(seqs, rows, strict=True) for term in row.index_terms]
        self._usage += [(row.mesh, 1, len(row.raw)) for row in rows]
        if not self._is_complete or len(self._usage) >= INDEX_EVENTS:
            self.write()

    def write(self) -> None:
        """Index all events."""
        if self._is_complete and not self._usage:
            return
        self._tx.undo.append(self._forget)
        if self._is_complete:  # in the order of each index: neighbours share their pages
            INSERT_IDS.run(self._db, sorted([(id_key(id_)[:PREFIX_BYTES], seq) for id_, seq in self._seqs.items()]))
            INSERT_TERMS.run(self._db, sorted(self._terms))
            self._db.executemany(EVENTS_SQL.count_usage, sum_usage(self._usage))
            self._db.execute(EVENTS_SQL.mark_indexed)
        else:
            index_rest(self._db)
        self._empty(is_complete=True)

    def seqs_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the seq of each of these ids that the store has, events of this transaction included."""
        if not self._is_complete:
            self.write()
        found = {id_: self._seqs[id_] for id_ in ids if id_ in self._seqs}
        keys = [id_key(id_) for id_ in ids if id_ not in found]
        if len(keys) == 1 and self._db.execute(EVENTS_SQL.seq_of_prefix, (keys[0][:PREFIX_BYTES],)).get is None:
            return found  # as for nearly every event that comes alone
        if keys:
            found |= {
                key.hex(): seq for key, seq in self._db.execute(EVENTS_SQL.indexed_ids, (apsw.carray(tuple(keys)),))
            }
        return found

    def usage_of(self, mesh: str) -> Usage:
        """Return what a mesh has stored, including the events of this transaction."""
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
        self._empty(is_complete=True)

    def _forget(self) -> None:
        self._empty(is_complete=False)

    def _empty(self, *, is_complete: bool) -> None:
        self._seqs, self._terms, self._usage, self._is_complete = {}, [], [], is_complete


def index_rest(db: apsw.Connection) -> None:
    """Index the events that are not indexed yet, in the open transaction."""
    db.execute(EVENTS_SQL.count_unindexed)
    db.execute(EVENTS_SQL.index_ids)
    for page in _pages_after(db, db.execute(EVENTS_SQL.indexed_through).get):
        INSERT_TERMS.run(
            db, sorted([entry for seq, raw, mesh in page for entry in _terms(seq, decode_event(raw), mesh)])
        )
    db.execute(EVENTS_SQL.mark_indexed)


def reindex(db: apsw.Connection) -> None:
    """Rebuild the indexes of ids, terms, current and fenced events; count the events that are not counted."""
    index_all_ids(db)
    db.execute(EVENTS_SQL.clear_fenced)
    db.execute(EVENTS_SQL.clear_terms)
    db.execute(EVENTS_SQL.clear_current)
    db.execute(EVENTS_SQL.count_unindexed)
    for page in _pages_after(db, 0):
        _index(db, page)
    INSERT_CURRENT.run(db, db.execute(EVENTS_SQL.erased_versions).fetchall())  # they keep their place
    db.execute(EVENTS_SQL.mark_indexed)


def index_all_ids(db: apsw.Connection) -> None:
    """Rebuild the index of ids; `index_state` is up to the caller."""
    db.execute(EVENTS_SQL.clear_ids)
    db.execute(EVENTS_SQL.index_all_ids)


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
