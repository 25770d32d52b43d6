"""The tables of meshes and locks on SQLite: rows in, rows out; nothing is decided here.

`locks` holds one row per (mesh, resource) for ever; each insert into `lock_requests` deletes a few old rows, so
that it never needs a sweep of its own.
"""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from posthouse.model.lease import LockRow, RequestRecord
from posthouse.model.limits import REQUEST_RECORD_S, SECOND_NS
from posthouse.relay.wire.lock_operations import LockEntry, LockRun
from posthouse.relay.wire.mesh_rows import AccessRow, InviteRow, MemberRow, MeshRow, MeshRows, Role, TopicRow, Verdict
from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import Statements

MESHES_SQL = Statements("posthouse.relay.store.sqlite.schema.events", "meshes.sql")


def read_mesh_rows(db: apsw.Connection) -> MeshRows:
    """Return all meshes with everything that belongs to them, as one snapshot sees them."""
    return MeshRows(
        meshes=[MeshRow(mesh, bool(is_open), *rest) for mesh, is_open, *rest in db.execute(MESHES_SQL.all_meshes)],
        members=[
            MemberRow(mesh, node, name, Role(role)) for mesh, node, name, role in db.execute(MESHES_SQL.all_members)
        ],
        access=[_access_of(row) for row in db.execute(MESHES_SQL.all_access)],
        topics=[TopicRow(*row) for row in db.execute(MESHES_SQL.all_topics)],
        subscriptions=[(mesh, node, pattern) for mesh, node, pattern in db.execute(MESHES_SQL.all_subscriptions)],
        blocks=[(mesh, node, blocked) for mesh, node, blocked in db.execute(MESHES_SQL.all_blocks)],
    )


def invite_of(row: tuple[Any, ...] | None) -> InviteRow | None:
    """Return the invite in a row."""
    if row is None:
        return None
    invite_id, code_hash, mesh, role, uses_left, expires_at_ns, creator = row
    return InviteRow(invite_id, code_hash, mesh, Role(role), uses_left, expires_at_ns, creator)


def _access_of(row: tuple[Any, ...]) -> AccessRow:
    mesh, node, *verdicts = row
    return AccessRow(mesh, node, *(Verdict(text) for text in verdicts))


LOCKS = Component("locks", "posthouse.relay.store.sqlite.schema.locks")
LOCKS_SQL = Statements("posthouse.relay.store.sqlite.schema.locks", "locks.sql")
_FIND, _CHANGE, _ADD = LOCKS_SQL.find_lock, LOCKS_SQL.change_lock, LOCKS_SQL.add_lock
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
    values = (row.owner, row.token, row.lease_ms, row.deadline_boot_ns, int(row.is_released), entry.last_ticket)
    db.execute(_CHANGE, (*values, entry.mesh, row.resource))
    if not db.changes():
        db.execute(_ADD, (*values, entry.mesh, row.resource))


def all_locks(db: apsw.Connection) -> list[LockEntry]:
    """Return every lock, in the order of mesh and resource."""
    return [_lock_entry(row) for row in db.execute(LOCKS_SQL.all_locks)]


def read_locks(
    db: apsw.Connection, meshes: frozenset[str] | None, after: tuple[str, str], limit: int
) -> list[LockEntry]:
    """Return the locks of some meshes (None: of all) that follow `after`, a mesh and a resource."""
    names = None if meshes is None else msgspec.json.encode(sorted(meshes)).decode()
    return [_lock_entry(row) for row in db.execute(LOCKS_SQL.page_of_locks, (*after, names, limit))]


def find_request(db: apsw.Connection, mesh: str, resource: str, owner: str, request_id: str) -> RequestRecord | None:
    """Return what was granted under a request id."""
    found = db.execute(LOCKS_SQL.find_request, (request_id, owner, mesh, resource)).fetchone()
    return None if found is None else RequestRecord(*found)


def save_request(db: apsw.Connection, mesh: str, resource: str, owner: str, record: RequestRecord, now_ns: int) -> None:
    """Keep what was granted under a request id, and forget a few that are a day old."""
    values = (record.lease_ms, record.token, record.expires_at_ns, record.granted_at_ns)
    db.execute(LOCKS_SQL.save_request, (record.request_id, owner, mesh, resource, *values))
    db.execute(LOCKS_SQL.forget_requests, (now_ns - REQUEST_RECORD_S * SECOND_NS, _FORGOTTEN_PER_INSERT))


def find_fence_write(db: apsw.Connection, mesh: str, resource: str, address: bytes) -> int | None:
    """Return the token of the last fenced write of a coordinate under a resource."""
    token: int | None = db.execute(LOCKS_SQL.find_fence_write, (address, mesh, resource)).get
    return token


def save_fence_write(db: apsw.Connection, mesh: str, resource: str, address: bytes, token: int) -> None:
    """Remember a fenced write of a coordinate."""
    db.execute(LOCKS_SQL.save_fence_write, (address, mesh, resource, token))


def find_run(db: apsw.Connection) -> LockRun | None:
    """Return the run that decided last."""
    found = db.execute(LOCKS_SQL.find_run).fetchone()
    return None if found is None else LockRun(*found)


def begin_run(db: apsw.Connection, run: LockRun, token_leap: int) -> int:
    """Begin a run: raise every token, re-open every lease that was not released, and return how many those are."""
    db.execute(LOCKS_SQL.save_run, run)
    db.execute(LOCKS_SQL.begin_turns)
    if token_leap:
        db.execute(LOCKS_SQL.raise_tokens, (token_leap,))
    db.execute(LOCKS_SQL.reopen, (run.boot_ns,))
    return db.changes()


def _lock_entry(row: tuple[Any, ...]) -> LockEntry:
    mesh, resource, owner, token, lease_ms, deadline_boot_ns, is_released, turn = row
    return LockEntry(mesh, LockRow(resource, owner, token, lease_ms, deadline_boot_ns, bool(is_released)), turn)
