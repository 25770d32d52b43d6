"""Rows of the message index: from journal records, or rebuilt from the files.

A page of records is collected first, so that a message published and handled within the page costs one row; applying
records twice gives the same rows. A rebuild reads the journal's head and the open mail as one snapshot before the
files; later changes have a record above that head and are applied afterwards. A file in cur/ without a row has
ended. Rows of handled messages have no files and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from posthouse.bus.data_directory import UNROUTED
from posthouse.bus.maildir import Mailbox
from posthouse.journal.cursor import Extent
from posthouse.journal.read import read_extent
from posthouse.journal.records import Record
from posthouse.model.clock import parse_utc
from posthouse.model.envelope import Envelope, decode_dead_letter, decode_envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.ulid import ulid_ms, validate_ulid
from posthouse.sqlite.statements import Statements

SQL = Statements("posthouse.bus.index", "index.sql")
#: id, endpoint_hash, subject, sender, status, created_at, expires_at, ended_at
IndexValues = tuple[str, str, str, str, str, int, int, int | None]
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
    page = _RecordBatch(db)
    for record in records:
        page.take(record)
    page.write()


class _RecordBatch:
    """The rows a page of records leads to."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._put: dict[_Key, IndexValues] = {}
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


Snapshot = tuple[Extent, set[tuple[str, str]], dict[str, str]]


def read_snapshot(db: apsw.Connection) -> Snapshot:
    """Return the journal's extent, the mail that has not ended, and the subjects by mailbox."""
    mail = {(str(hash_), str(id_)) for hash_, id_ in db.execute(SQL.mail)}
    subjects = {str(hash_): str(subject) for hash_, subject in db.execute("SELECT hash, subject FROM endpoints")}
    return read_extent(db), mail, subjects


def file_rows(root: Path, snapshot: Snapshot) -> Iterator[IndexValues]:
    """Yield a row for every message file and dead letter on disk."""
    _extent, mail, subjects = snapshot
    mailboxes = root / "mailboxes"
    for path in sorted(mailboxes.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _mailbox_rows(path, mail, subjects.get(path.name, ""))
    unrouted = Mailbox(root / UNROUTED, ("failed",))
    try:
        yield from _letter_rows(unrouted, UNROUTED, "")
    finally:
        unrouted.close()


def _mailbox_rows(path: Path, mail: set[tuple[str, str]], subject: str) -> Iterator[IndexValues]:
    try:
        mailbox = Mailbox(path)
    except (OSError, PosthouseError):  # half made or half removed
        return
    try:
        for box in ("new", "cur"):
            yield from _message_rows(mailbox, path.name, box, mail)
        yield from _letter_rows(mailbox, path.name, subject)
    finally:
        mailbox.close()


def _message_rows(mailbox: Mailbox, hash_: str, box: str, mail: set[tuple[str, str]]) -> Iterator[IndexValues]:
    for name in mailbox.names(box):
        if box == "cur" and (hash_, name) not in mail:
            continue
        try:
            envelope = decode_envelope(mailbox.read(f"{box}/{name}"))
        except (OSError, PosthouseError):  # no message: it becomes a dead letter when the mailbox is served
            continue
        if envelope.id == name:
            yield _row(name, hash_, envelope, box)


def _letter_rows(mailbox: Mailbox, hash_: str, subject: str) -> Iterator[IndexValues]:
    for name in mailbox.names("failed"):
        try:
            validate_ulid(name)
            letter = decode_dead_letter(mailbox.read(f"failed/{name}"))
        except (OSError, PosthouseError):
            continue
        if letter.envelope is not None:
            yield _row(name, hash_, letter.envelope, "dlq")
        else:
            made_ms = ulid_ms(name)
            yield (name, hash_, subject, "", "dlq", made_ms, made_ms, None)


def _row(id_: str, hash_: str, envelope: Envelope, status: str) -> IndexValues:
    created_ms = parse_utc(envelope.created_at) // MILLISECOND_NS
    return (id_, hash_, envelope.subject, envelope.from_, status, created_ms, envelope.budget.ttl, None)
