"""Rows of the message index: from journal records, or rebuilt from the files.

A page of records is collected first, so that a message published and handled within the page costs one row; applying
records twice gives the same rows. A rebuild reads the journal's head and the open mail as one snapshot before the
files; later changes have a record above that head and are applied afterwards. A file in cur/ without a row has
ended. Handled messages have no files; their rows stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.bus.data_directory import UNROUTED
from posthouse.bus.maildir import Mailbox
from posthouse.journal.cursor import Extent
from posthouse.journal.digest import Record
from posthouse.journal.read import read_extent
from posthouse.model.clock import parse_utc
from posthouse.model.envelope import Envelope, decode_dead_letter, decode_envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.ulid import ulid_ms, validate_ulid
from posthouse.sqlite.transaction import BulkInsert
from posthouse.storage.sql_files import Statements

SQL = Statements("posthouse.bus.index", "index.sql")
_PUT = BulkInsert(SQL.put.rpartition("(")[0], 8)
_Key = tuple[str, str]  # id, endpoint_hash


class IndexValues(NamedTuple):
    """A row of the index, in the order of its columns; times in Unix milliseconds."""

    id: str
    endpoint_hash: str
    subject: str
    sender: str
    status: str
    created_at: int
    expires_at: int
    ended_at: int | None = None


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


class _DeadLetter(msgspec.Struct):
    endpoint_hash: str
    subject: str
    created_at_ms: int
    expires_at_ms: int


_published = msgspec.json.Decoder(_Published).decode
_ended = msgspec.json.Decoder(_Ended).decode
_dead_letter = msgspec.json.Decoder(_DeadLetter).decode


def apply_records(db: apsw.Connection, records: Iterable[Record]) -> None:
    """Apply a page of the journal to the index."""
    batch = _RecordBatch(db)
    for record in records:
        batch.apply(record)
    batch.write()


class _RecordBatch:
    """The rows that a page of records changes."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._put: dict[_Key, IndexValues] = {}
        self._ended: dict[_Key, int] = {}

    def apply(self, record: Record) -> None:
        if record.type == "bus.published":
            self._apply_published(record)
        elif record.type == "bus.handled":
            self._apply_handled(record)
        elif record.type in ("bus.failed", "bus.dead"):
            self._apply_dead_letter(record)
        elif record.type in ("bus.requeued", "bus.purged", "bus.unregistered"):
            self.write()
            self._apply_removal(record)

    def write(self) -> None:
        """Write the collected rows."""
        self._db.executemany(SQL.end, [(at, *key) for key, at in self._ended.items()])
        _PUT.run(self._db, list(self._put.values()))
        self._put, self._ended = {}, {}

    def _apply_published(self, record: Record) -> None:
        body = _published(record.body.encode())
        id_, envelope = record.ref or "", body.envelope
        created_ms = parse_utc(envelope.created_at) // MILLISECOND_NS
        sender, expires_ms = record.actor or "", envelope.budget.ttl
        row = IndexValues(id_, body.endpoint_hash, envelope.subject, sender, "new", created_ms, expires_ms)
        self._ended.pop((id_, body.endpoint_hash), None)
        self._put[id_, body.endpoint_hash] = row

    def _apply_handled(self, record: Record) -> None:
        key = (record.ref or "", _ended(record.body.encode()).endpoint_hash)
        at_ms = record.at_ns // MILLISECOND_NS
        row = self._put.get(key)
        if row is None:
            self._ended[key] = at_ms
        else:
            self._put[key] = row._replace(status="done", ended_at=at_ms)

    def _apply_dead_letter(self, record: Record) -> None:
        body = _dead_letter(record.body.encode())
        id_, sender = record.ref or "", record.actor or ""
        self._put[id_, body.endpoint_hash] = IndexValues(
            id_, body.endpoint_hash, body.subject, sender, "dlq", body.created_at_ms, body.expires_at_ms
        )

    def _apply_removal(self, record: Record) -> None:
        body: dict[str, Any] = record.decoded_body()
        if record.type == "bus.requeued":
            self._db.execute(SQL.remove, (record.ref, body["endpoint_hash"]))
        elif record.type == "bus.purged":
            self._db.executemany(SQL.remove, [(id_, record.ref) for id_ in body["ids"]])
        else:
            self._db.execute(SQL.remove_waiting_of_endpoint, (body["endpoint_hash"],))
            self._db.execute(SQL.move_dead_letters, (body["endpoint_hash"],))


class Snapshot(NamedTuple):
    """The state of bus.db before a rebuild reads the files."""

    extent: Extent
    #: mailbox and id of every message that has not ended
    mail: set[tuple[str, str]]
    #: subject of the endpoint, by mailbox
    subjects: dict[str, str]


def read_snapshot(db: apsw.Connection) -> Snapshot:
    """Read the snapshot of a rebuild in one transaction."""
    mail = {(str(hash_), str(id_)) for hash_, id_ in db.execute(SQL.mail)}
    subjects = {str(hash_): str(subject) for hash_, subject in db.execute("SELECT hash, subject FROM endpoints")}
    return Snapshot(read_extent(db), mail, subjects)


def file_rows(root: Path, snapshot: Snapshot) -> Iterator[IndexValues]:
    """Yield a row for every message file and dead letter on disk."""
    for path in sorted((root / "mailboxes").iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield from _mailbox_rows(path, snapshot.mail, snapshot.subjects.get(path.name, ""))
    unrouted = Mailbox(root / UNROUTED, ("failed",))
    try:
        yield from _dead_letter_rows(unrouted, UNROUTED, "")
    finally:
        unrouted.close()


def _mailbox_rows(path: Path, mail: set[tuple[str, str]], subject: str) -> Iterator[IndexValues]:
    try:
        mailbox = Mailbox(path)
    except (OSError, PosthouseError):  # being created or removed
        return
    try:
        for folder in ("new", "cur"):
            yield from _message_rows(mailbox, path.name, folder, mail)
        yield from _dead_letter_rows(mailbox, path.name, subject)
    finally:
        mailbox.close()


def _message_rows(mailbox: Mailbox, hash_: str, folder: str, mail: set[tuple[str, str]]) -> Iterator[IndexValues]:
    for name in mailbox.names(folder):
        if folder == "cur" and (hash_, name) not in mail:
            continue
        try:
            envelope = decode_envelope(mailbox.read(f"{folder}/{name}"))
        except (OSError, PosthouseError):  # invalid: it becomes a dead letter when the mailbox is served
            continue
        if envelope.id == name:
            yield _row(name, hash_, envelope, folder)


def _dead_letter_rows(mailbox: Mailbox, hash_: str, subject: str) -> Iterator[IndexValues]:
    for name in mailbox.names("failed"):
        try:
            validate_ulid(name)
            dead_letter = decode_dead_letter(mailbox.read(f"failed/{name}"))
        except (OSError, PosthouseError):
            continue
        if dead_letter.envelope is not None:
            yield _row(name, hash_, dead_letter.envelope, "dlq")
        else:
            created_ms = ulid_ms(name)
            yield IndexValues(name, hash_, subject, "", "dlq", created_ms, created_ms)


def _row(id_: str, hash_: str, envelope: Envelope, status: str) -> IndexValues:
    created_ms = parse_utc(envelope.created_at) // MILLISECOND_NS
    return IndexValues(id_, hash_, envelope.subject, envelope.from_, status, created_ms, envelope.budget.ttl)
