"""The tables of locks on PostgreSQL: rows in, rows out; nothing is decided here.

LockTables implements its part of posthouse.relay.store.protocol.Unit. A resource may be any text, so the database keeps
it as bytes, which also compare as the rules of lock scopes want. `locks` has a row for every lease that was not
released; a free name keeps its last row. Each insert into `lock_requests` deletes a few old rows, so it never needs a
sweep of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from posthouse.model.lease import LockRow, RequestRecord
from posthouse.model.limits import REQUEST_RECORD_S, SECOND_NS
from posthouse.model.lock_scope import Claim, range_below, trees_above
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.relay.store.postgresql.pg_journal import SCHEMA
from posthouse.relay.wire.lock_operations import LockEntry, LockPosition, LockRun
from posthouse.storage.sql_files import Statements

SQL = Statements(SCHEMA, "locks.sql")
_DELETED_PER_INSERT = 2  # more than one, so that a backlog of old rows shrinks
_NOTHING_BELOW = ("", "")


class LockTables:
    """Locks, their requests and their fenced writes, inside a transaction."""

    now_ns: int

    @property
    def _db(self) -> ServerConnection:
        raise NotImplementedError

    def find_overlaps(self, mesh: str, claim: Claim, now_ns: int) -> list[LockRow]:
        holder = (claim.owner, claim.session, claim.is_shared)
        return self._leases(SQL.overlaps, mesh, claim.resource.encode(), *holder, now_ns, *_scope(claim))

    def find_own_overlap(self, mesh: str, claim: Claim, now_ns: int) -> LockRow | None:
        holder = (claim.owner, claim.session)
        found = self._leases(SQL.own_overlap, mesh, claim.resource.encode(), *holder, now_ns, *_scope(claim))
        return found[0] if found else None

    def find_leases(
        self, mesh: str, resource: str, owner: str | None = None, token: int | None = None
    ) -> list[LockRow]:
        if owner is not None:
            return self._leases(SQL.leases_of_owner, mesh, resource.encode(), owner)
        if token is not None:
            return self._leases(SQL.leases_of_token, mesh, resource.encode(), token)
        return self._leases(SQL.leases_of_name, mesh, resource.encode())

    def find_covering(self, mesh: str, resource: str, *, only_exclusive: bool = False) -> list[LockRow]:
        names = _packed([*trees_above(resource), resource])
        return self._leases(SQL.covering_leases, mesh, resource.encode(), names, only_exclusive)

    def add_lease(self, mesh: str, row: LockRow) -> None:
        resource = row.resource.encode()
        timing, kind = (row.token, row.lease_ms, row.deadline_boot_ns), (row.session, row.is_tree, row.is_shared)
        self._db.queue(SQL.drop_last_lease, mesh, resource)
        self._db.queue(SQL.add_lease, mesh, resource, row.owner, *timing, *kind)

    def extend_lease(self, mesh: str, row: LockRow) -> None:
        self._db.queue(SQL.extend_lease, *_key(mesh, row), row.lease_ms, row.deadline_boot_ns)

    def end_lease(self, mesh: str, row: LockRow) -> None:
        if row.is_shared:
            self._db.queue(SQL.drop_shared_lease, *_key(mesh, row))
        self._db.queue(SQL.end_lease, *_key(mesh, row))  # changes nothing if the row is gone

    def find_lock_request(
        self, mesh: str, resource: str, owner: str, session: str, request_id: str
    ) -> RequestRecord | None:
        found = self._db.row(SQL.find_request, request_id, owner, session, mesh, resource.encode())
        return None if found is None else RequestRecord(*found)

    def save_lock_request(self, mesh: str, resource: str, owner: str, session: str, record: RequestRecord) -> None:
        key = (record.request_id, owner, session, mesh, resource.encode())
        values = (record.lease_ms, record.token, record.expires_at_ns, record.granted_at_ns, record.parameters)
        self._db.queue(SQL.save_request, *key, *values)
        self._db.queue(SQL.forget_requests, self.now_ns - REQUEST_RECORD_S * SECOND_NS, _DELETED_PER_INSERT)

    def find_lock_run(self) -> LockRun | None:
        found = self._db.row(SQL.find_run)
        return None if found is None else LockRun(*found)

    def begin_lock_run(self, run: LockRun, over_before_ns: int, void_token: int) -> int:
        self._db.queue(SQL.save_run, *run)
        if void_token:
            self._db.queue(SQL.void_tokens, void_token)
        reopened: int = self._db.value(SQL.count_reopened, over_before_ns)
        self._db.queue(SQL.reopen, run.boot_ns, over_before_ns)
        return reopened

    def last_token(self) -> int:
        return last_token(self._db)

    def next_token(self) -> int:
        token: int = self._db.value(SQL.next_token)
        return token

    def raise_token_counter(self, token: int) -> None:
        self._db.queue(SQL.raise_counter, token)

    def find_fence_write(self, mesh: str, resource: str, address: bytes) -> int | None:
        token: int | None = self._db.value(SQL.find_fence_write, address, mesh, resource.encode())
        return token

    def save_fence_write(self, mesh: str, resource: str, address: bytes, token: int) -> None:
        self._db.queue(SQL.save_fence_write, address, mesh, resource.encode(), token)

    def _leases(self, statement: str, *parameters: Any) -> list[LockRow]:
        return [_lock_row(*row) for row in self._db.rows(statement, *parameters)]


def last_token(db: ServerConnection) -> int:
    """Return the counter of fencing tokens: no token above it was granted."""
    token: int = db.value(SQL.last_token)
    return token


def all_locks(db: ServerConnection) -> list[LockEntry]:
    """Return every lease and every free name, ordered by mesh, resource and holder."""
    return [LockEntry(mesh, _lock_row(*row)) for mesh, *row in db.rows(SQL.all_locks)]


def read_locks(db: ServerConnection, meshes: frozenset[str] | None, after: LockPosition, limit: int) -> list[LockEntry]:
    """Return the locks of some meshes (None: of all) that follow `after`."""
    mesh, resource, owner, session = after
    names = None if meshes is None else sorted(meshes)
    found = db.rows(SQL.page_of_locks, mesh, resource.encode(), owner, session, names, limit)
    return [LockEntry(name, _lock_row(*row)) for name, *row in found]


def _lock_row(resource: bytes, *rest: Any) -> LockRow:
    return LockRow(resource.decode(), *rest)


def _key(mesh: str, row: LockRow) -> tuple[str, bytes, str, str]:
    return mesh, row.resource.encode(), row.owner, row.session


def _scope(claim: Claim) -> tuple[list[bytes], bytes, bytes]:
    """Return the name with the trees above it, and the range below it, which is empty for a plain lock."""
    low, high = range_below(claim.resource) if claim.is_tree else _NOTHING_BELOW
    return _packed([*trees_above(claim.resource), claim.resource]), low.encode(), high.encode()


def _packed(names: Iterable[str]) -> list[bytes]:
    return [name.encode() for name in names]
