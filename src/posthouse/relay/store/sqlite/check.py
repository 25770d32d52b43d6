"""Rules a relay's store keeps beside those of every journal; each yields findings as sentences.

Records and events agree one to one, and no id is there twice; what an event's columns and indexes say follows from
its JSON, whose bytes hash to its id; the latest of each line is the largest; the tables of meshes are what the
journal's records lead to.
Signatures are not verified again here: the id covers what was signed, and the pipeline's audit does it at scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from posthouse.journal.read import read_after
from posthouse.journal.verify import Rule
from posthouse.model.canonical import event_id
from posthouse.model.errors import PosthouseError
from posthouse.model.event import decode_event
from posthouse.relay.deliver.check import DELIVERY_RULES
from posthouse.relay.locks.replay import check_locks
from posthouse.relay.meshes.replay import Facts, Replay, facts_of
from posthouse.relay.pinch.check import PINCH_RULES
from posthouse.relay.store.rows import row_of
from posthouse.relay.store.sqlite.mesh_rows import read_mesh_rows
from posthouse.sqlite.statements import Statements

SQL = Statements("posthouse.relay.store.sqlite", "check.sql")
_RECORDS_PER_READ = 1_000


def check_records(db: apsw.Connection) -> Iterator[str]:
    """Compare the journal's records of events with the events."""
    for (seq,) in db.execute(SQL.records_without_event):
        yield f"events: the record {seq} has not its event"
    for (seq,) in db.execute(SQL.events_without_record):
        yield f"events: the event {seq} has not its record"
    for (seq,) in db.execute(SQL.events_twice):
        yield f"events: the id of {seq} was accepted before"


def check_contents(db: apsw.Connection) -> Iterator[str]:
    """Compare ids, columns and terms of all events with their JSON."""
    expected = _Digest()
    for row in db.execute(SQL.contents):
        seq, *columns, raw = row
        try:
            yield from _compare(seq, tuple(columns), raw, expected)
        except PosthouseError as fault:
            yield f"events: the content of {seq} cannot be read: {fault}"
    actual = _Digest()
    for term, seq in db.execute(SQL.all_terms):
        actual.add(term, seq)
    if actual != expected:
        yield f"terms: {actual.count} entries are there, {expected.count} follow from the events; reindex repairs it"


def check_current(db: apsw.Connection) -> Iterator[str]:
    """Compare the index of current events with the events."""
    for (seq,) in db.execute(SQL.current_without_event):
        yield f"current: the index names {seq}, which is not there as it says; reindex repairs it"
    for (seq,) in db.execute(SQL.events_above_current):
        yield f"current: {seq} is larger than what the index names; reindex repairs it"


def check_kept(db: apsw.Connection) -> Iterator[str]:
    """Compare the list of events that pruning had to keep with the events."""
    for (seq,) in db.execute(SQL.kept_without_content):
        yield f"kept: the list names {seq}, which has no content to keep, or whose record is not pruned"


def check_meshes(db: apsw.Connection) -> Iterator[str]:
    """Compare the tables of meshes with what the journal's records lead to."""
    replay, seq = Replay(), 0
    while records := read_after(db, seq, _RECORDS_PER_READ):
        for record in records:
            replay.apply(record)
        seq = records[-1].seq
    yield from _differences(replay.facts, facts_of(read_mesh_rows(db)))


RULES: tuple[Rule, ...] = (
    check_records,
    check_contents,
    check_current,
    check_meshes,
    check_locks,
    *DELIVERY_RULES,
    *PINCH_RULES,
)


def _compare(seq: int, columns: tuple[Any, ...], raw: bytes, expected: _Digest) -> Iterator[str]:
    event = decode_event(raw)
    if event_id(event.canonical()) != event.id:
        yield f"events: the content of {seq} does not hash to its id"
    row = row_of(event, b"")
    if columns != (
        event.id,
        event.pubkey,
        event.kind,
        event.created_at_ns,
        row.mesh,
        row.recipient,
        row.expiration_s,
        row.address,
    ):
        yield f"events: the columns of {seq} are not those of its content"
    for term in row.terms:
        expected.add(term, seq)


def _differences(journal: Facts, tables: Facts) -> Iterator[str]:
    for key in sorted(journal.keys() | tables.keys()):
        if journal.get(key) != tables.get(key):
            yield f"meshes: {' '.join(key)} is {tables.get(key)!r}, the journal says {journal.get(key)!r}"


class _Digest:
    """Compares two sets of entries without holding them: a sum does not depend on the order."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, term: bytes, seq: int) -> None:
        self.count += 1
        self._sum = (self._sum + hash((term, seq))) & 0xFFFF_FFFF_FFFF_FFFF

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Digest) and (self.count, self._sum) == (other.count, other._sum)

    __hash__ = None  # type: ignore[assignment]
