"""The tables of locks on SQLite: rows in, rows out, on a connection that the store hands over.

Nothing is decided here. `locks` holds one row per (mesh, resource) for ever; `lock_requests` is swept a little with
each insert, so that it never needs a sweep of its own.
"""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from posthouse.model.lease import LockRow, RequestRecord
from posthouse.model.limits import REQUEST_RECORD_S, SECOND_NS
from posthouse.relay.locks.rows import LockEntry, LockRun
from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import Statements

LOCKS = Component("locks", "posthouse.relay.locks")
SQL = Statements("posthouse.relay.locks", "locks.sql")
_FIND, _CHANGE, _ADD = SQL.find_lock, SQL.change_lock, SQL.add_lock
_FORGOTTEN_PER_INSERT = 2  # more than one, so that a backlog shrinks


def find_lock(db: apsw.Connection, mesh: str, resource: str) -> LockEntry | None:
    """Return a lock, or None when nobody ever held it."""
    found = db.execute(_FIND, (mesh, resource)).fetchone()
    if found is None:
        return None
    owner, token, lease_ms, deadline_boot_ns, is_released, turn = found
    return LockEntry(mesh, LockRow(resource, owner, token, lease_ms, deadline_boot_ns, bool(is_released)), turn)


def save_lock(db: apsw.Connection, entry: LockEntry) -> None:
    """Write a lock, new or known."""
    row = entry.row
    values = (row.owner, row.token, row.lease_ms, row.deadline_boot_ns, int(row.is_released), entry.turn)
    db.execute(_CHANGE, (*values, entry.mesh, row.resource))
    if not db.changes():
        db.execute(_ADD, (*values, entry.mesh, row.resource))


def all_locks(db: apsw.Connection) -> list[LockEntry]:
    """Return every lock, in the order of mesh and resource."""
    return [_entry(row) for row in db.execute(SQL.all_locks)]


def read_locks(
    db: apsw.Connection, meshes: frozenset[str] | None, after: tuple[str, str], limit: int
) -> list[LockEntry]:
    """Return the locks of some meshes (None: of all) that follow `after`, a mesh and a resource."""
    names = None if meshes is None else msgspec.json.encode(sorted(meshes)).decode()
    return [_entry(row) for row in db.execute(SQL.page_of_locks, (*after, names, limit))]


def find_request(db: apsw.Connection, mesh: str, resource: str, owner: str, request_id: str) -> RequestRecord | None:
    """Return what was granted under a request id."""
    found = db.execute(SQL.find_request, (request_id, owner, mesh, resource)).fetchone()
    return None if found is None else RequestRecord(*found)


def save_request(db: apsw.Connection, mesh: str, resource: str, owner: str, record: RequestRecord, now_ns: int) -> None:
    """Keep what was granted under a request id, and forget a few that are a day old."""
    values = (record.lease_ms, record.token, record.expires_at_ns, record.granted_at_ns)
    db.execute(SQL.save_request, (record.request_id, owner, mesh, resource, *values))
    db.execute(SQL.forget_requests, (now_ns - REQUEST_RECORD_S * SECOND_NS, _FORGOTTEN_PER_INSERT))


def find_fence_write(db: apsw.Connection, mesh: str, resource: str, address: bytes) -> int | None:
    """Return the token of the last fenced write of a coordinate under a resource."""
    token: int | None = db.execute(SQL.find_fence_write, (address, mesh, resource)).get
    return token


def save_fence_write(db: apsw.Connection, mesh: str, resource: str, address: bytes, token: int) -> None:
    """Remember a fenced write of a coordinate."""
    db.execute(SQL.save_fence_write, (address, mesh, resource, token))


def find_run(db: apsw.Connection) -> LockRun | None:
    """Return the run that decided last."""
    found = db.execute(SQL.find_run).fetchone()
    return None if found is None else LockRun(*found)


def begin_run(db: apsw.Connection, run: LockRun, token_leap: int) -> int:
    """Begin a run: raise every token, re-open every lease that was not released, and return how many those are."""
    db.execute(SQL.save_run, run)
    db.execute(SQL.begin_turns)
    if token_leap:
        db.execute(SQL.raise_tokens, (token_leap,))
    db.execute(SQL.reopen, (run.boot_ns,))
    return db.changes()


def _entry(row: tuple[Any, ...]) -> LockEntry:
    mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, turn = row
    return LockEntry(mesh, LockRow(resource, owner, token, lease_ms, deadline_boot_ns, bool(is_released)), turn)
