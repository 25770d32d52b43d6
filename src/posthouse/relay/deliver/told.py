"""Confirmations on their way to the sender of what was confirmed: a second cursor beside that of its messages.

They are never confirmed themselves. A batch is followed by a ping; its answer proves that the batch was read, and only
then its rows go. They take no place in the window; what bounds them is the number of unanswered pings.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from posthouse.relay.deliver.mail import Confirmed
from posthouse.relay.deliver.peer import Peer
from posthouse.relay.deliver.rows import ConfirmationPage

MAX_UNANSWERED = 8  # batches
_BATCH = 50

Read = Callable[[int, int], Awaitable[ConfirmationPage]]


class Told:
    """What one open mailbox tells its node about its own messages."""

    def __init__(self, peer: Peer, read: Read, forget: Callable[[int], None], wake: Callable[[], None]) -> None:
        self._peer = peer
        self._read = read
        self._forget = forget
        self._wake = wake
        self._seq = 0
        self._unanswered = 0
        self._is_at_tail = False
        self._is_passed = False
        self._is_closed = False

    @property
    def is_behind(self) -> bool:
        """Whether something waits, or is on its way."""
        return not self._is_at_tail or self._unanswered > 0

    def offer(self, news: Sequence[Confirmed]) -> None:
        """Take confirmations that were just committed, in order."""
        fresh = [each for each in news if each.seq > self._seq]
        size = sum(len(each.text) for each in fresh)
        if not self._is_at_tail:
            self._is_passed = True
        elif fresh and self._unanswered < MAX_UNANSWERED and self._peer.has_room(size, len(fresh)):
            self._send(self._peer.separator.join([each.text for each in fresh]), len(fresh), fresh[-1].seq)
        elif fresh:
            self._is_at_tail = False
            self._wake()

    async def catch_up(self) -> None:
        """Send what waits, as far as pings are answered."""
        while self._may_send():
            self._is_passed = False
            page = await self._read(self._seq, _BATCH)
            await self._peer.drain()
            if not self._may_send():
                return
            if page.size:
                self._send(page.text, page.size, page.through_seq)
            elif not self._is_passed:
                self._is_at_tail = True

    def close(self) -> None:
        """Send nothing more."""
        self._is_closed = True

    def _may_send(self) -> bool:
        return not self._is_closed and not self._is_at_tail and self._unanswered < MAX_UNANSWERED

    def _send(self, text: bytes, count: int, through_seq: int) -> None:
        self._seq = through_seq
        self._unanswered += 1
        self._peer.deliver(text, count)
        self._peer.ping(lambda: self._answered(through_seq))

    def _answered(self, through_seq: int) -> None:
        self._unanswered -= 1
        self._forget(through_seq)
        if not self._is_at_tail:
            self._wake()
