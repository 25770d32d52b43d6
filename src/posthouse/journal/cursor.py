"""Cursors (epoch, seq), what a journal holds, where a cursor continues in it, and how far a lake has committed it.

seq alone would lie after a restore: the same number could mean another fact. Nothing is ever skipped silently: a
cursor of another epoch gets cursor_reset (restart at its own seq when it stood below the fork, else at the fork,
else at the oldest record), one below the pruned horizon cursor_pruned. The pipeline writes the lake's mark (one file
per epoch) after its commit, so it can only lag behind; bus and daemon read it before they prune. A missing or
unreadable mark counts as nothing committed. If you change that file: keep old ones readable,
docs/explain/storage.md. Loads no SQLite.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path

import msgspec

from posthouse.files import private_dir, write_atomic
from posthouse.model.errors import error

_EPOCH_BYTES = 16
_SEQ_BYTES = 8


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place right after the record `seq` of the history `epoch`."""

    epoch: str
    seq: int

    def __str__(self) -> str:
        packed = bytes.fromhex(self.epoch) + self.seq.to_bytes(_SEQ_BYTES, "big")
        return base64.urlsafe_b64encode(packed).decode()


def parse_cursor(text: str) -> Cursor:
    """Return the cursor that `text` stands for."""
    try:
        packed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        packed = b""
    if len(packed) != _EPOCH_BYTES + _SEQ_BYTES:
        raise error("cursor_invalid", cursor=text[:80])
    return Cursor(packed[:_EPOCH_BYTES].hex(), int.from_bytes(packed[_EPOCH_BYTES:], "big"))


@dataclass(frozen=True, slots=True)
class Extent:
    """What a journal holds: its epoch, and the seqs (pruned_through, head]."""

    epoch: str
    fork_seq: int
    pruned_through: int
    head: int
    #: The epochs this history came from, each with the last seq that both share.
    ancestors: tuple[tuple[str, int], ...] = ()

    def cursor(self, seq: int) -> Cursor:
        """Return the cursor right after `seq`."""
        return Cursor(self.epoch, seq)


def resolve_cursor(extent: Extent, cursor: str | None) -> int:
    """Return the seq after which `cursor` continues; without a cursor, the oldest place that is still there."""
    if cursor is None:
        return extent.pruned_through
    place = parse_cursor(cursor)
    if place.epoch != extent.epoch:
        restart = extent.cursor(_shared_seq(extent, place))
        raise error("cursor_reset", fork_seq=extent.fork_seq, cursor=str(restart))
    if place.seq > extent.head:
        raise error("cursor_invalid", cursor=cursor)
    if place.seq < extent.pruned_through:
        restart = extent.cursor(extent.pruned_through)
        raise error("cursor_pruned", oldest_seq=extent.pruned_through + 1, cursor=str(restart))
    return place.seq


def _shared_seq(extent: Extent, place: Cursor) -> int:
    shared = dict(extent.ancestors).get(place.epoch, 0)
    return max(min(place.seq, shared), extent.pruned_through)


DIRECTORY = "committed"


class Committed(msgspec.Struct, frozen=True):
    """The last seq of an epoch that every feed of the lake has."""

    epoch: str
    seq: int


def note_committed(lake: Path, epoch: str, seq: int) -> None:
    """Say that the lake has the records of an epoch up to `seq`; it never goes back."""
    if seq <= read_committed(lake, epoch):
        return
    directory = private_dir(lake / DIRECTORY)
    write_atomic(directory / f"{epoch}.json", msgspec.json.encode(Committed(epoch, seq)))


def read_committed(lake: Path, epoch: str) -> int:
    """Return the last seq of an epoch that the lake has, 0 when it says nothing of it."""
    try:
        data = (lake / DIRECTORY / f"{epoch}.json").read_bytes()
        found = msgspec.json.decode(data, type=Committed)
    except (OSError, msgspec.DecodeError):
        return 0
    return found.seq if found.epoch == epoch else 0
