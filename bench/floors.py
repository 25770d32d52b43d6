"""Floors: the rates of the bare libraries on this machine, measured in the same run.

Two threads that only verify signatures set the upper bound of what a relay on two cores can accept. One connection
that only commits the rows of an event, a lock operation or an accepted send, with a sync each time, sets the upper
bound of durable answers one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import msgspec
from nacl.bindings import crypto_sign_open

from bench.scales import BODY_CHARS
from posthouse.daemon.outbox.outbox import Outbox
from posthouse.daemon.outbox.transitions import SQL
from posthouse.journal.append import SQL as JOURNAL
from posthouse.keys import public_key
from posthouse.model.clock import SystemClock
from posthouse.model.event import Event
from posthouse.model.node import node_key
from posthouse.model.ulid import UlidGenerator
from posthouse.relay.store.event_rows import EventRow, event_row
from posthouse.relay.store.sqlite.lock_requests import LOCKS_SQL as LOCKS
from posthouse.relay.store.sqlite.queries import EVENTS_SQL as RELAY
from posthouse.relay.store.sqlite.store import SqliteStore

THREADS = 2
_EVENT = f"{RELAY.insert_events} ({', '.join('?' * 10)})"
_TERM = f"{RELAY.insert_terms} (?, ?)"


@contextmanager
def bare_database(path: Path) -> Iterator[apsw.Connection]:
    """Open a database as its only writer, with a sync at every commit."""
    db = apsw.Connection(str(path))
    try:
        db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        yield db
    finally:
        db.close()


class VerifyFloor:
    """Bare libsodium on two threads."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._signed = [(bytes.fromhex(e.sig) + e.canonical(), public_key(e.pubkey)) for e in events]
        self._pool = ThreadPoolExecutor(THREADS)

    def rate(self) -> float:
        """Verify all events once and return events per second."""
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


class EventFloor:
    """Commits the rows of one event at a time with apsw alone."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def rate(self, events: Sequence[Event]) -> float:
        """Commit each event and return events per second."""
        seq = self._db.execute(JOURNAL.head).get
        prepared = [_rows(event_row(event, event.canonical()), seq + n) for n, event in enumerate(events, start=1)]
        started = time.perf_counter()
        for record, row, terms in prepared:
            self._commit(record, row, terms)
        return len(events) / (time.perf_counter() - started)

    def _commit(self, record: tuple[Any, ...], row: tuple[Any, ...], terms: Sequence[tuple[bytes, int]]) -> None:
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        execute(JOURNAL.append, record)
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
    return record, columns, sorted((term, seq) for term in row.index_terms)


@contextmanager
def event_floor(path: Path) -> Iterator[EventFloor]:
    """Yield the floor on a database with the relay's tables."""
    SqliteStore(path, SystemClock()).close()
    with bare_database(path) as db:
        yield EventFloor(db)


_OWNER = "ed25519:" + "0" * 64
_BODY = {
    "owner": _OWNER,
    "token": 1,
    "lease_ms": 30_000,
    "granted_boot_ns": 10**15,
    "deadline_boot_ns": 10**15,
    "run_id": "0" * 16,
}
_TEXT = msgspec.json.encode(_BODY).decode()


class LockFloor:
    """Changes a lock's row, its journal record and the journal's counter with one connection."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        db.execute(LOCKS.add_lease, (_OWNER, 1, 30_000, 0, "", 0, 0, "main", "floor"))

    def rate(self, commits: int) -> float:
        """Do this many commits and return commits per second."""
        execute, seq = self._db.execute, self._db.execute(JOURNAL.head).get
        now_ns = SystemClock().wall_ns()
        started = time.perf_counter()
        for number in range(seq + 1, seq + 1 + commits):
            execute("BEGIN IMMEDIATE")
            execute(LOCKS.extend_lease, (30_000, now_ns, "main", "floor", _OWNER, ""))
            execute(JOURNAL.append, (number, now_ns, "lock.acquired", "main", _OWNER, "floor", _TEXT))
            execute("COMMIT")
        return commits / (time.perf_counter() - started)


@contextmanager
def lock_floor(path: Path) -> Iterator[LockFloor]:
    """Yield the floor on a database with the relay's tables."""
    SqliteStore(path, SystemClock()).close()
    with bare_database(path) as db:
        yield LockFloor(db)


_EVENT_BYTES = 900  # of a sealed and signed message with a body of BODY_CHARS
_MESH = "main"


class OutboxFloor:
    """Commits outbox rows with apsw alone."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._clock = SystemClock()
        self._minter = UlidGenerator(self._clock)
        self._seq = count(int(str(db.execute(JOURNAL.head).get)) + 1)
        self._event = b"x" * (_EVENT_BYTES + BODY_CHARS)

    def rate(self, number: int) -> float:
        """Commit this many rows and return rows per second."""
        ids = [self._minter.mint() for _ in range(number)]
        started = time.perf_counter()
        for row_id in ids:
            self._commit(row_id)
        return number / (time.perf_counter() - started)

    def commit(self) -> str:
        """Commit one row and return its id."""
        row_id = self._minter.mint()
        self._commit(row_id)
        return row_id

    def _commit(self, row_id: str) -> None:
        execute, now_ns = self._db.execute, self._clock.wall_ns()
        body = f'{{"client_message_id":"{row_id}"}}'
        execute("BEGIN IMMEDIATE")
        execute(SQL.by_client_id, (row_id, "")).fetchone()
        execute(JOURNAL.append, (next(self._seq), now_ns, "outbox.queued", _MESH, None, row_id, body))
        row = (row_id, row_id, b"f" * 32, row_id, self._event, "#floor", "", "", None, now_ns, len(self._event))
        execute(SQL.insert_row, row)
        execute("COMMIT")


@contextmanager
def outbox_floor(folder: Path) -> Iterator[OutboxFloor]:
    """Yield the floor on an outbox."""
    folder.mkdir(parents=True)
    path = folder / "outbox.db"
    Outbox(path, _MESH, SystemClock()).close()
    with bare_database(path) as db:
        yield OutboxFloor(db)
