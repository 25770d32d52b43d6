"""The high-water mark: a small file that says how far a relay's store has come, so that an older copy is noticed.

A copy of relay.db that is put back by hand is a valid store; nothing in it says that acknowledged records are missing.
The mark states epoch and head, and is written after the records that it counts, so it can only lag. A start refuses a
store that does not reach its mark. The mark is next to the store, unless `relay.high_water` names another place:
restoring a snapshot of the whole directory would take a mark next to the store back too. This module knows files and
extents; it opens no store. If you change the file: give it a new format name, keep reading the old one, update
docs/how-to/relay-backup.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from posthouse.files import read_private, write_atomic
from posthouse.journal.cursor import Extent
from posthouse.model.errors import Transient, error

FILE_NAME = "relay.high-water"
#: far more than a relay grants in the few seconds until the next mark; a second of the clock is part of it
_GRANTS_UNTIL_NEXT = 2**20
Format = Literal["posthouse-high-water-v1"]


class ServerTimeline(NamedTuple):
    """The server of a store in a database: its data directory, and how often a standby of it was promoted."""

    system: str
    timeline: int


class HighWater(msgspec.Struct, frozen=True):
    """The position that a store had reached at one moment."""

    #: empty: the operator gave the store up
    epoch: str
    head: int
    #: no fencing token above it was granted until then
    token_counter: int
    boot_id: str
    boot_ns: int
    format: Format = "posthouse-high-water-v1"
    #: None: the store is a file
    server: ServerTimeline | None = None

    @property
    def token_bound(self) -> int:
        """No token above it was granted before the next mark would have been written."""
        return self.token_counter + _GRANTS_UNTIL_NEXT


class MarkFile:
    """The file of one store's mark."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> HighWater | None:
        """Return the mark, None if there is none; raise high_water_damaged if it cannot be read."""
        try:
            return msgspec.json.decode(read_private(self.path), type=HighWater)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as fault:
            raise error("high_water_damaged", path=str(self.path), reason=str(fault)) from fault

    def write(self, mark: HighWater) -> None:
        """Replace the mark durably; raise high_water_unwritable."""
        try:
            write_atomic(self.path, msgspec.json.encode(mark) + b"\n")
        except (OSError, Transient) as fault:
            reason = fault.strerror if isinstance(fault, OSError) else fault.fields["reason"]
            raise error("high_water_unwritable", path=str(self.path), reason=reason) from fault

    def give_up(self) -> None:
        """Keep only the counter of tokens of the mark: its store is lost, and an empty one follows."""
        mark = self.read()
        if mark is not None:
            self.write(msgspec.structs.replace(mark, epoch="", head=0))


class MovedTo(NamedTuple):
    """The place that a store was moved to."""

    #: as shown to people
    target: str
    #: the unambiguous name of the place: the path of a file, or server and database
    place: str


class StoredState(NamedTuple):
    """The state of the store in a database, as checked at start."""

    #: None: there is no store
    extent: Extent | None = None
    #: None: it was not moved
    moved: MovedTo | None = None
    server: ServerTimeline | None = None
    #: whether it was last written on another server
    is_elsewhere: bool = False


def refuse_moved(moved: MovedTo | None, store: Path | str) -> None:
    """Raise store_moved if a store was moved elsewhere."""
    if moved is not None:
        raise error("store_moved", path=str(store), target=moved.target)


def refuse_missing(store: Path, key: Path, mark: HighWater | None) -> None:
    """Raise store_missing if a store is lost; an empty file is no loss: the start that created it has died."""
    if store.exists():
        return
    if key.exists():
        raise error("store_missing", path=str(store), witness=f"the key {key} is there")
    if mark is not None and mark.epoch:
        raise error("store_missing", path=str(store), witness="its high-water mark is there")


def refuse_old_timeline(seen: ServerTimeline | None, server: ServerTimeline | None, store: str) -> None:
    """Raise store_timeline_old if the same server was seen on a higher timeline before: it is a former primary."""
    if seen is not None and server is not None and server.system == seen.system and server.timeline < seen.timeline:
        raise error("store_timeline_old", url=store, timeline=server.timeline, seen=seen.timeline)


def is_reached(mark: HighWater | None, extent: Extent | None) -> bool:
    """Return True if a store, None if it is empty, has everything that its mark counted, or a newer epoch."""
    if mark is None or not mark.epoch:
        return True
    if extent is None:
        return False
    # a former epoch: `relay restore` has begun a new one since
    return (mark.epoch == extent.epoch and mark.head <= extent.head) or mark.epoch in dict(extent.ancestors)


def refuse_rolled_back(mark: HighWater | None, extent: Extent | None, store: Path | str) -> None:
    """Raise store_rolled_back if a store, None if it is empty, does not reach the mark."""
    if mark is None or is_reached(mark, extent):
        return
    found = "empty" if extent is None else f"at seq {extent.head} of epoch {extent.epoch[:8]}"
    reached = f"seq {mark.head} of epoch {mark.epoch[:8]}"
    raise error("store_rolled_back", path=str(store), found=found, reached=reached)
