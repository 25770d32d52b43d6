"""Floors: what the bare libraries do on this machine, in the same run.

Two threads that only verify signatures are the most any relay on two cores could accept; one connection that only
commits the rows of an event is the fastest that one synced answer after the other could come.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
from nacl.bindings import crypto_sign_open

from posthouse.journal.append import SQL as JOURNAL
from posthouse.keys import public_key
from posthouse.model.clock import SystemClock
from posthouse.model.event import Event
from posthouse.model.node import node_key
from posthouse.relay.store.interface import EventRow
from posthouse.relay.store.rows import row_of
from posthouse.relay.store.sqlite import SqliteStore
from posthouse.relay.store.sqlite.plan import SQL as RELAY

THREADS = 2
_EVENT = f"{RELAY.insert_events} ({', '.join('?' * 10)})"
_TERM = f"{RELAY.insert_terms} (?, ?)"


class VerifyFloor:
    """Bare libsodium on two threads."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._signed = [(bytes.fromhex(e.sig) + e.canonical(), public_key(e.pubkey)) for e in events]
        self._pool = ThreadPoolExecutor(THREADS)

    def rate(self) -> float:
        """Verify everything once and return how many per second."""
        half = len(self._signed) // THREADS
        parts = [self._signed[:half], self._signed[half:]]
        started = time.perf_counter()
        list(self._pool.map(_verify, parts))
        return len(self._signed) / (time.perf_counter() - started)

    def close(self) -> None:
        self._pool.shutdown()


def _verify(signed: Sequence[tuple[bytes, bytes]]) -> None:
    for message, public in signed:
        crypto_sign_open(message, public)


class CommitFloor:
    """The rows of an event, committed one event at a time by apsw alone."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def rate(self, events: Sequence[Event]) -> float:
        """Commit each event and return how many per second."""
        seq = self._db.execute(JOURNAL.head).get
        prepared = [_rows(row_of(event, event.canonical()), seq + n) for n, event in enumerate(events, start=1)]
        started = time.perf_counter()
        for record, row, terms in prepared:
            self._commit(record, row, terms)
        return len(events) / (time.perf_counter() - started)

    def _commit(self, record: tuple[Any, ...], row: tuple[Any, ...], terms: Sequence[tuple[bytes, int]]) -> None:
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        execute(JOURNAL.append, record)
        execute(JOURNAL.add_bytes, (len(record[-1]),))
        execute(_EVENT, row)
        for term in terms:
            execute(_TERM, term)
        execute("COMMIT")


def _rows(row: EventRow, seq: int) -> tuple[tuple[Any, ...], tuple[Any, ...], list[tuple[bytes, int]]]:
    event = row.event
    at_ns = SystemClock().wall_ns()
    record = (seq, at_ns, row.record_type, row.mesh, event.pubkey, event.id, row.record_body)
    columns = (
        seq,
        bytes.fromhex(event.id),
        node_key(event.pubkey),
        event.kind,
        event.created_at_ns,
        row.mesh,
        None,
        row.expiration_s,
        row.address,
        row.raw,
    )
    return record, columns, sorted((term, seq) for term in row.terms)


@contextmanager
def commit_floor(path: Path) -> Iterator[CommitFloor]:
    """A database with the relay's tables that only this connection writes, synced at every commit."""
    SqliteStore(path, SystemClock()).close()
    db = apsw.Connection(str(path))
    try:
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        yield CommitFloor(db)
    finally:
        db.close()
