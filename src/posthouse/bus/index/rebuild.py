"""Rebuilding the index from the files: every mailbox on disk, in one transaction.

The journal's head and the rows of open mail are read as one snapshot before the files; what changes meanwhile has a
record above that head and is taken in afterwards. A file in cur/ without a row has ended: only its removal
was interrupted. Rows of handled messages have no files and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

from posthouse.bus.directory import UNROUTED
from posthouse.bus.index.feed import Row
from posthouse.bus.index.statements import SQL
from posthouse.bus.mailbox import Mailbox
from posthouse.journal.read import Extent, read_extent
from posthouse.model.envelope import Envelope, decode_dead_letter, decode_envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.ids import ulid_ms, validate_ulid
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.timestamps import parse_utc

Snapshot = tuple[Extent, set[tuple[str, str]], dict[str, str]]


def read_snapshot(db: apsw.Connection) -> Snapshot:
    """Return the journal's extent, the mail that has not ended, and the subjects by mailbox."""
    mail = {(str(hash_), str(id_)) for hash_, id_ in db.execute(SQL.mail)}
    subjects = {str(hash_): str(subject) for hash_, subject in db.execute("SELECT hash, subject FROM endpoints")}
    return read_extent(db), mail, subjects


def file_rows(root: Path, snapshot: Snapshot) -> Iterator[Row]:
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


def _mailbox_rows(path: Path, mail: set[tuple[str, str]], subject: str) -> Iterator[Row]:
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


def _message_rows(mailbox: Mailbox, hash_: str, box: str, mail: set[tuple[str, str]]) -> Iterator[Row]:
    for name in mailbox.names(box):
        if box == "cur" and (hash_, name) not in mail:
            continue
        try:
            envelope = decode_envelope(mailbox.read(f"{box}/{name}"))
        except (OSError, PosthouseError):  # no message: it becomes a dead letter when the mailbox is served
            continue
        if envelope.id == name:
            yield _row(name, hash_, envelope, box)


def _letter_rows(mailbox: Mailbox, hash_: str, subject: str) -> Iterator[Row]:
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


def _row(id_: str, hash_: str, envelope: Envelope, status: str) -> Row:
    created_ms = parse_utc(envelope.created_at) // MILLISECOND_NS
    return (id_, hash_, envelope.subject, envelope.from_, status, created_ms, envelope.budget.ttl, None)
