"""The core of a relay: accept, store, read, meshes, behind one object that knows nothing of HTTP or WebSockets.

The edge hands in bytes and node ids it has authenticated and gets values back. What others see comes from
`listen`, which follows committed rows. All methods belong to the event loop that `start` ran on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from posthouse.journal.read import Record
from posthouse.model.bucket import Rate
from posthouse.model.coordinate import Coordinate
from posthouse.model.event import Event
from posthouse.model.filters import Filter
from posthouse.relay.answers import Answer
from posthouse.relay.committed import Committed, Listener
from posthouse.relay.store.interface import Page, StoredEvent


@dataclass(frozen=True)
class CoreSettings:
    """What a core needs to know; everything else has its default."""

    data_dir: Path
    #: node id of the relay's own key: invites and authentication are bound to it
    relay: str
    #: whether the mesh main, when it is made at the first start, is open to any key (on loopback it is)
    is_main_open: bool = True
    #: nodes that administer main, and with it the relay
    admins: tuple[str, ...] = ()
    event_rate: Rate = Rate(1_000, 5_000)
    ephemeral_rate: Rate = Rate(100, 500)


class LaneSketch(Protocol):
    """Core.open_lane: one connection's way in; answers may overtake each other, accepts never do."""

    def submit(self, events: Sequence[bytes]) -> None:
        """Take events as JSON, in order. Several are a list: after a refused one, later ones with the same
        destination get earlier_refused."""
        ...

    def in_flight(self) -> int:
        """How many are not answered yet; stop reading from the socket above a bound of your own."""
        ...

    def close(self) -> None:
        """Forget who wanted the answers; what was submitted is still accepted."""
        ...


class CoreSketch(Protocol):
    """The methods of Core."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...

    async def accept(self, event: bytes) -> Answer: ...
    async def accept_many(self, events: Sequence[bytes]) -> list[Answer]: ...
    def open_lane(self, on_answers: Callable[[Sequence[Answer]], None]) -> LaneSketch: ...

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with what is committed from now on; returns what ends it."""
        ...

    def may_read(self, committed: Committed, node: str) -> bool: ...
    async def verify(self, event: bytes) -> Event:
        """Check structure, id and signature of an event that is not published (kind 22242)."""
        ...

    async def query(
        self, node: str, filters: Sequence[Filter], *, cursor: str | None = None, limit: int = 500, order: str = "asc"
    ) -> Page: ...
    def cursor(self, seq: int) -> str: ...
    async def count(self, node: str, filters: Sequence[Filter]) -> int: ...
    async def event(self, node: str, event_id: str) -> StoredEvent: ...
    async def address(self, node: str, coordinate: Coordinate) -> StoredEvent: ...
    async def history(self, node: str, coordinate: Coordinate, *, cursor: str | None = None, limit: int = 500) -> Page:
        ...
    async def journal(
        self, node: str, *, after: str | None = None, types: Collection[str] | None = None, limit: int = 500
    ) -> tuple[list[Record], str | None]: ...
    async def prune(self, node: str, *, epoch: str, from_seq: int, to_seq: int, digest: str) -> int: ...
    def info(self) -> dict[str, Any]: ...
