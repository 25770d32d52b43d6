"""Following the events of a daemon over its restarts: where to go on, how long to wait, what ends it.

Messages can be told again from the inbox, so the place is the last message; whatever else happens is told live only.
Before the first message there is no place: what came since is then read from the inbox once the stream is open, and
what the stream tells of it too is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from posthouse.client.backoff import Backoff
from posthouse.client.daemon.sse import RESUME_HEADER
from posthouse.client.daemon.values import DaemonEvent, InboxItem
from posthouse.model.errors import PosthouseError

EVERYTHING = 1_000  # the most one answer has
_GONE = ("daemon_unreachable", "daemon_stopping")
_FULL = ("too_many_streams", "daemon_busy")


class Following:
    """One program that listens."""

    def __init__(self, last: str | None) -> None:
        #: id of the last message, None before the first
        self.last = last
        #: messages that were read from the inbox and may come by the stream too
        self._stored: set[str] = set()
        self._backoff = Backoff(most_s=5.0)
        #: the daemon has answered, so one that is gone is waited for
        self._was_there = False
        #: a stream was open, so one that is refused comes back
        self._has_begun = False

    def begin(self, newest: Sequence[InboxItem]) -> None:
        """Take the newest message there is as the place to begin behind."""
        self.last = newest[0].id if newest else None
        self._was_there = True

    def headers(self) -> Mapping[str, str]:
        """Return what the next attempt asks with."""
        return {} if self.last is None else {RESUME_HEADER: self.last}

    def opened(self) -> None:
        """Note that the stream is open: from now on only time stands between it and the next one."""
        self._was_there = self._has_begun = True

    def is_new(self, event: DaemonEvent) -> bool:
        """Tell whether an event was not read from the inbox before."""
        return event.id not in self._stored

    def note_stored(self, item: InboxItem) -> DaemonEvent:
        """Take a message of the inbox for the event that it was."""
        self._stored.add(item.id)
        return self.note(DaemonEvent("message", {"ts": item.received_at, **msgspec.structs.asdict(item)}, item.id))

    def note(self, event: DaemonEvent) -> DaemonEvent:
        """Remember where an event was, and return it."""
        self._backoff.reset()
        self.last = event.id or self.last
        return event

    def judge(self, failure: PosthouseError) -> None:
        """Raise a failure unless waiting helps."""
        if failure.code == "inbox_item_unknown" and self._has_begun:  # another inbox is there: begin with what it has
            self.last = None
        elif not (failure.code in _GONE and self._was_there) and not (failure.code in _FULL and self._has_begun):
            raise failure

    def pause_s(self) -> float:
        """Return how long to wait before the next attempt; an attempt that ends makes the following one later."""
        return self._backoff.next_s()
