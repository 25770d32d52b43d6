"""From journal records to index rows.

What a page of records says about a message is gathered first, so that one published and handled within the page
costs one row. Applying records twice gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import apsw
import msgspec

from posthouse.bus.index.statements import SQL
from posthouse.journal.read import Record
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.timestamps import parse_utc

#: id, endpoint_hash, subject, sender, status, created_at, expires_at, ended_at
Row = tuple[str, str, str, str, str, int, int, int | None]
_Key = tuple[str, str]


class _Budget(msgspec.Struct):
    ttl: int


class _Envelope(msgspec.Struct, rename="camel"):
    subject: str
    created_at: str
    budget: _Budget


class _Published(msgspec.Struct):
    endpoint_hash: str
    envelope: _Envelope


class _Ended(msgspec.Struct):
    endpoint_hash: str


class _Letter(msgspec.Struct):
    endpoint_hash: str
    subject: str
    created_at_ms: int
    expires_at_ms: int


_published = msgspec.json.Decoder(_Published).decode
_ended = msgspec.json.Decoder(_Ended).decode
_letter = msgspec.json.Decoder(_Letter).decode


def apply_records(db: apsw.Connection, records: Iterable[Record]) -> None:
    """Take a page of the journal into the index."""
    page = _Page(db)
    for record in records:
        page.take(record)
    page.write()


class _Page:
    """The rows a page of records leads to."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._put: dict[_Key, Row] = {}
        self._ended: dict[_Key, int] = {}

    def take(self, record: Record) -> None:
        if record.type == "bus.published":
            self._take_published(record)
        elif record.type == "bus.handled":
            self._take_handled(record)
        elif record.type in ("bus.failed", "bus.dead"):
            self._take_letter(record)
        elif record.type in ("bus.requeued", "bus.purged", "bus.unregistered"):
            self.write()
            self._take_removal(record)

    def write(self) -> None:
        """Write what was gathered."""
        self._db.executemany(SQL.end, [(at, *key) for key, at in self._ended.items()])
        self._db.executemany(SQL.put, list(self._put.values()))
        self._put, self._ended = {}, {}

    def _take_published(self, record: Record) -> None:
        body = _published(record.body.encode())
        id_, envelope = record.ref or "", body.envelope
        created_ms = parse_utc(envelope.created_at) // MILLISECOND_NS
        row = (
            id_,
            body.endpoint_hash,
            envelope.subject,
            record.actor or "",
            "new",
            created_ms,
            envelope.budget.ttl,
            None,
        )
        self._ended.pop((id_, body.endpoint_hash), None)
        self._put[id_, body.endpoint_hash] = row

    def _take_handled(self, record: Record) -> None:
        key = (record.ref or "", _ended(record.body.encode()).endpoint_hash)
        at_ms = record.at_ns // MILLISECOND_NS
        row = self._put.get(key)
        if row is None:
            self._ended[key] = at_ms
        else:
            self._put[key] = (*row[:4], "done", *row[5:7], at_ms)

    def _take_letter(self, record: Record) -> None:
        body = _letter(record.body.encode())
        id_, sender = record.ref or "", record.actor or ""
        times = (body.created_at_ms, body.expires_at_ms)
        self._put[id_, body.endpoint_hash] = (id_, body.endpoint_hash, body.subject, sender, "dlq", *times, None)

    def _take_removal(self, record: Record) -> None:
        body: dict[str, Any] = record.decoded_body()
        if record.type == "bus.requeued":
            self._db.execute(SQL.remove, (record.ref, body["endpoint_hash"]))
        elif record.type == "bus.purged":
            self._db.executemany(SQL.remove, [(id_, record.ref) for id_ in body["ids"]])
        else:
            self._db.execute(SQL.remove_waiting_of_endpoint, (body["endpoint_hash"],))
            self._db.execute(SQL.move_letters, (body["endpoint_hash"],))
