"""The request ids of granted locks: written many at a time, some commits after their grants.

A request id and its index lie on two pages, a third of what a grant would write. So the newest ones are only in memory
and, with everything else that a retry is compared with, in the records of their grants; `lock_requests_state` says up
to which record the table has them. After a start or a rollback the rest is read from the journal. The table is never
far behind, so this takes a moment, and no record is pruned before the table has its request id.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.journal.append import JournalTransaction
from posthouse.model.lease import LeaseRequest, RequestRecord
from posthouse.model.limits import MILLISECOND_NS, REQUEST_RECORD_S, SECOND_NS
from posthouse.model.lock_scope import Asked
from posthouse.storage.sql_files import Component, Statements

LOCKS = Component("locks", "posthouse.relay.store.sqlite.schema.locks")
LOCKS_SQL = Statements("posthouse.relay.store.sqlite.schema.locks", "locks.sql")
UNWRITTEN_REQUESTS = 64
RECORDS_BEHIND = 1_024  # read in about a millisecond
_DELETED_AT_ONCE = 2 * UNWRITTEN_REQUESTS  # more than are added between two deletions, so that old rows become fewer


class RequestKey(NamedTuple):
    """What a request id belongs to; in the order of the table's index."""

    request_id: str
    owner: str
    session: str
    mesh: str
    resource: str


class LockRequests:
    """The request ids of one writer; belongs to its transactions."""

    def __init__(self, tx: JournalTransaction) -> None:
        self._tx = tx
        self._db = tx.db
        #: not in the table
        self._unwritten: dict[RequestKey, RequestRecord] = {}
        #: False if the journal has request ids that are neither in the table nor in `_unwritten`
        self._is_complete = False
        #: seq of the last record whose request id is in the table; 0 until it was read
        self.saved_through = 0

    def find(self, key: RequestKey) -> RequestRecord | None:
        """Return the grant of a request id; it may be older than a day."""
        if not self._is_complete:
            self.write()
        found = self._unwritten.get(key)
        if found is not None:
            return found
        row: Any = self._db.execute(LOCKS_SQL.find_request, key).fetchone()
        return None if row is None else RequestRecord(*row)

    def add(self, key: RequestKey, record: RequestRecord) -> None:
        """Keep the grant of a request id; called before the records of the grant are appended."""
        if not self._is_complete or len(self._unwritten) >= UNWRITTEN_REQUESTS:
            self.write()
        self._tx.undo.append(self._forget)
        self._unwritten[key] = record

    def write_through(self, seq: int) -> None:
        """Write the request ids of the records up to a seq, and all others, unless the table has them."""
        if not self.saved_through:
            self.saved_through = self._db.execute(LOCKS_SQL.requests_saved_through).get
        if self.saved_through < seq:
            self.write()

    def write(self) -> None:
        """Write everything that is not written, and delete a few of those that are older than a day."""
        self._tx.undo.append(self._forget)
        self._tx.flush()
        save_requests(self._db, self._unwritten if self._is_complete else unwritten_requests(self._db))
        before_ns = self._tx.now_ns - REQUEST_RECORD_S * SECOND_NS
        self._db.execute(LOCKS_SQL.forget_requests, (before_ns, _DELETED_AT_ONCE))
        self._unwritten, self._is_complete, self.saved_through = {}, True, self._tx.head

    def _forget(self) -> None:
        self._unwritten, self._is_complete, self.saved_through = {}, False, 0


def unwritten_requests(db: apsw.Connection) -> dict[RequestKey, RequestRecord]:
    """Return the request ids that only the journal has."""
    records = [
        (at_ns, mesh, resource, msgspec.json.decode(body))
        for at_ns, mesh, resource, body in db.execute(LOCKS_SQL.grants_to_write)
    ]
    grants = groupby(records, lambda record: record[3]["token"])  # a record for each name, all with one token
    return dict(_request_of(list(grant)) for _token, grant in grants)


def save_requests(db: apsw.Connection, requests: Mapping[RequestKey, RequestRecord]) -> None:
    """Write request ids, which must be all that the table lacks, in the open transaction."""
    rows = [
        (*key, record.lease_ms, record.token, record.expires_at_ns, record.granted_at_ns, record.parameters)
        for key, record in requests.items()
    ]
    db.executemany(LOCKS_SQL.save_request, rows)
    db.execute(LOCKS_SQL.mark_requests)


def _request_of(grant: list[tuple[int, str, str, dict[str, Any]]]) -> tuple[RequestKey, RequestRecord]:
    at_ns, mesh, resource, body = grant[0]
    owner, session, lease_ms = body["owner"], body.get("session", ""), body["lease_ms"]
    is_tree, is_shared = body.get("tree", False), body.get("shared", False)
    claims = tuple([Asked(name, owner, session, is_tree, is_shared) for _at_ns, _mesh, name, _body in grant])
    key = RequestKey(body["request_id"], owner, session, mesh, resource)
    expires_at_ns, parameters = at_ns + lease_ms * MILLISECOND_NS, LeaseRequest(claims, lease_ms).parameters
    return key, RequestRecord(key.request_id, lease_ms, body["token"], expires_at_ns, at_ns, parameters)
