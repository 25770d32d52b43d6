"""A position in a growing list of messages or confirmations, on one connection.

Behind the tail a cursor reads pages; at the tail it sends new commits from memory: one path, so nothing overtakes and
nothing is sent twice. With a full window or a slow peer a cursor falls behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar


class Peer(Protocol):
    """One connection, whatever its wire."""

    #: stands between commands that are sent together
    separator: bytes

    def deliver(self, text: bytes, count: int) -> None:
        """Send commands, given as one text or joined by the separator, without waiting."""
        ...

    def send_frame(self, frame: bytes) -> None:
        """Send a frame that is ready for the wire and shared with other connections."""
        ...

    def has_room(self, size: int, count: int) -> bool:
        """Return True if so many more messages can be written without waiting."""
        ...

    async def drain(self) -> None:
        """Wait until the peer has taken everything that was written."""
        ...

    @property
    def taken_bytes(self) -> int:
        """How many bytes the peer has taken so far while some are unsent; else a number that does not change."""
        ...

    def ping(self, on_pong: Callable[[], None]) -> None:
        """Send a ping; `on_pong` is called when the peer has read everything before it."""
        ...

    def end(self, code: int, reason: str) -> None:
        """Close the connection."""
        ...


class Fresh(Protocol):
    """An entry that was just committed."""

    @property
    def seq(self) -> int: ...

    @property
    def text(self) -> bytes: ...


class EntryPage(Protocol):
    """Entries read from the store."""

    @property
    def size(self) -> int: ...


FreshT = TypeVar("FreshT", bound=Fresh)
PageT = TypeVar("PageT", bound=EntryPage)


class TailCursor(Generic[FreshT, PageT]):
    """A position in a growing list: behind the tail it reads pages, at the tail new entries are offered to it.

    Entries that are committed while a page is read mark the cursor as passed, so it reads another page instead of
    believing that it is at the tail.
    """

    page_limit: int

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.is_closed = False
        self.position = 0
        self.is_at_tail = False
        self._is_passed = False

    @property
    def room(self) -> int:
        """How many entries may be sent now."""
        raise NotImplementedError

    async def read_page(self, limit: int) -> PageT:
        """Return the next entries."""
        raise NotImplementedError

    def send_page(self, page: PageT) -> None:
        """Send a page, which may be empty, and move the position."""
        raise NotImplementedError

    def send_fresh(self, fresh: Sequence[FreshT]) -> None:
        """Send entries that were just committed, and move the position."""
        raise NotImplementedError

    def wake(self) -> None:
        """Call `catch_up` soon."""
        raise NotImplementedError

    def may_continue(self) -> bool:
        """Return True if the page that was just read may be sent."""
        return not self.is_closed

    async def wait_for_room(self) -> None:
        """Wait a moment if that makes the next page larger."""

    def on_tail(self) -> None:
        """Note that the tail is reached."""

    def offer(self, committed: Sequence[FreshT]) -> None:
        """Send entries that were just committed, in order, or fall behind."""
        if not self.is_at_tail:
            self._is_passed = True
            return
        fresh = [each for each in committed if each.seq > self.position]
        sizes = [len(each.text) for each in fresh]
        count = min(len(fresh), self.room)
        if count > 0 and self.peer.has_room(sum(sizes[:count]), count):
            self.send_fresh(fresh[:count])
            if count == len(fresh):
                return
        if fresh:
            self.fall_behind()

    def fall_behind(self) -> None:
        """Read pages from now on."""
        self._is_passed = True
        self.is_at_tail = False
        self.wake()

    async def catch_up(self) -> None:
        """Send pages until the tail is reached or there is no room."""
        while not self.is_closed and not self.is_at_tail and self.room > 0:
            await self.wait_for_room()
            limit = min(self.page_limit, self.room)
            await self.peer.drain()  # first: no page waits in memory for a peer that does not read
            self._is_passed = False
            page = await self.read_page(limit)
            if not self.may_continue():
                return
            self.send_page(page)
            if page.size < limit and not self._is_passed:
                self.is_at_tail = True
                self.on_tail()
