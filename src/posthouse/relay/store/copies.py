"""What a store offers to its copies: changes for followers; keys and contents of events for mirrors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from posthouse.model.filters import Filter
from posthouse.relay.store.event_rows import ContentRow
from posthouse.relay.wire.change_groups import ChangesPage, StreamPosition


class KeptGroup(NamedTuple):
    """A recorded group that can still be read, without its changeset."""

    number: int
    at_ns: int
    #: seq of the newest record of the journal after it
    head: int
    #: bytes of its changeset
    size: int


class ChangeLog(Protocol):
    """The recorded changes of a store."""

    @property
    def is_on(self) -> bool:
        """Whether transactions are recorded."""
        ...

    def kept(self) -> Sequence[KeptGroup]:
        """Return the groups that can be read, oldest first."""
        ...

    def listen(self, on_recorded: Callable[[], None]) -> None:
        """Call back, on any thread, after each commit that recorded a group or ended the recording."""
        ...

    async def start(self) -> None:
        """Begin a new recording, unless there is one."""
        ...

    async def stop(self) -> None:
        """End the recording: followers have to take a new copy."""
        ...

    async def read(self, after: StreamPosition, max_bytes: int) -> ChangesPage:
        """Return groups after a position; raise follow_restart if the recording does not continue from there."""
        ...

    def copy(self, target: Path) -> None:
        """Write the store, as it is after some commit from now on, to a new private file; blocks."""
        ...


class CopyReads(Protocol):
    """The part of a store that copies need."""

    @property
    def changes(self) -> ChangeLog | None:
        """The recorded changes; None: this store is replicated by other means."""
        ...

    async def event_keys(self, wanted: Filter, after_seq: int, through_seq: int) -> list[tuple[int, bytes]]:
        """Return created_at_ns and id of the events of a range that match a filter without ids and tags.

        Events without content are among them.
        """
        ...

    async def find_contents(self, ids: Sequence[str]) -> list[ContentRow]:
        """Return the events with these ids, those without content included."""
        ...

    async def contents_between(self, after_seq: int, through_seq: int) -> list[ContentRow]:
        """Return the events of a range, those without content included, in seq order."""
        ...
