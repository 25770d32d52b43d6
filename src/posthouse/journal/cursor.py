"""Cursors (epoch, seq), the extent of a journal, where a cursor continues, and how far a lake has committed.

seq alone would be ambiguous after a restore: the same number could mean another record. No record is ever skipped
silently: a cursor of another epoch gets cursor_reset (restart at its own seq if it is below the fork, else at the
fork, else at the oldest record), so does one beyond the head (restart at the head); one below the pruned horizon gets
cursor_pruned. The pipeline writes the lake's mark (one file per epoch) after its commit, so the mark can lag but never
run ahead; bus and daemon read it before they prune. A missing or unreadable mark means that nothing is committed. If
you change that file: keep old files readable, update docs/explain/storage.md. Loads no SQLite.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from posthouse.files import home_directory, private_dir, write_atomic
from posthouse.model.errors import error

_EPOCH_BYTES = 16
_SEQ_BYTES = 8


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position right after the record `seq` of the epoch `epoch`."""

    epoch: str
    seq: int

    def __str__(self) -> str:
        packed = bytes.fromhex(self.epoch) + self.seq.to_bytes(_SEQ_BYTES, "big")
        return base64.urlsafe_b64encode(packed).decode()


def parse_cursor(text: str) -> Cursor:
    """Return the cursor in a text, or raise cursor_invalid."""
    try:
        packed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        packed = b""
    if len(packed) != _EPOCH_BYTES + _SEQ_BYTES:
        raise error("cursor_invalid", cursor=text[:80])
    return Cursor(packed[:_EPOCH_BYTES].hex(), int.from_bytes(packed[_EPOCH_BYTES:], "big"))


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a journal: its epoch, and the seqs (pruned_through, head]."""

    epoch: str
    fork_seq: int
    pruned_through: int
    head: int
    #: Former epochs of this history, each with the last seq that both share.
    ancestors: tuple[tuple[str, int], ...] = ()

    def cursor(self, seq: int) -> Cursor:
        """Return the cursor right after `seq`."""
        return Cursor(self.epoch, seq)


def resolve_cursor(extent: Extent, cursor: str | None) -> int:
    """Return the seq after which `cursor` continues; without a cursor, the oldest position."""
    if cursor is None:
        return extent.pruned_through
    position = parse_cursor(cursor)
    if position.epoch != extent.epoch:
        restart = extent.cursor(_shared_seq(extent, position))
        raise error("cursor_reset", fork_seq=extent.fork_seq, cursor=str(restart))
    if position.seq > extent.head:  # an older file of this epoch was put back: records up to the cursor are lost
        raise error("cursor_reset", fork_seq=extent.head, cursor=str(extent.cursor(extent.head)))
    if position.seq < extent.pruned_through:
        restart = extent.cursor(extent.pruned_through)
        raise error("cursor_pruned", oldest_seq=extent.pruned_through + 1, cursor=str(restart))
    return position.seq


def _shared_seq(extent: Extent, position: Cursor) -> int:
    shared = dict(extent.ancestors).get(position.epoch, 0)
    return max(min(position.seq, shared), extent.pruned_through)


DIRECTORY = "committed"
_S3 = "s3://"


def lake_directory(location: str) -> Path:
    """Return the directory of a lake's marks on this host: the lake's own, or for a lake in S3 one in the home."""
    if not location.startswith(_S3):
        return Path(location).expanduser()
    return home_directory() / "lakes" / hashlib.sha256(location.rstrip("/").encode()).hexdigest()[:16]


class Committed(msgspec.Struct, frozen=True):
    """The last seq of an epoch that every feed of the lake has."""

    epoch: str
    seq: int


def note_committed(lake: Path, epoch: str, seq: int) -> None:
    """Record that the lake has the records of an epoch up to `seq`; the mark never decreases."""
    if seq <= read_committed(lake, epoch):
        return
    directory = private_dir(lake / DIRECTORY)
    write_atomic(directory / f"{epoch}.json", msgspec.json.encode(Committed(epoch, seq)))


def read_committed(lake: Path, epoch: str) -> int:
    """Return the last seq of an epoch that the lake has committed, or 0."""
    try:
        data = (lake / DIRECTORY / f"{epoch}.json").read_bytes()
        found = msgspec.json.decode(data, type=Committed)
    except (OSError, msgspec.DecodeError):
        return 0
    return found.seq if found.epoch == epoch else 0
