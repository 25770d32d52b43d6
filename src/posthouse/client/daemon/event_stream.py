"""Wait for messages and follow events over restarts of the daemon; pure state, no I/O.

`EventReader` parses server-sent events line by line; an event torn by a break is dropped and comes again after the
resume. `EventFollower` resumes behind the last message, because only messages are kept; before the first message it
reads the inbox once the stream is open and drops what the stream repeats. `LongPoll` asks in slices, so a restarted
daemon is noticed. Times are boot times: a step of the wall clock changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from posthouse.client.daemon.local_api import DaemonEvent, InboxItem
from posthouse.client.failures import Backoff
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError

RESUME_HEADER = "Last-Event-ID"


class EventReader:
    """Puts the lines of one stream together."""

    def __init__(self) -> None:
        self._event = ""
        self._id: str | None = None
        self._data: list[str] = []

    def take(self, line: bytes) -> DaemonEvent | None:
        """Take the next line; return the event that it completes."""
        text = line.decode().rstrip("\r\n")
        if not text:
            return self._complete()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "id":
            self._id = value
        elif name == "data":
            self._data.append(value)
        return None

    def _complete(self) -> DaemonEvent | None:
        event, data, event_id = self._event, "\n".join(self._data), self._id
        self._event, self._data, self._id = "", [], None
        if not event or not data:
            return None
        return DaemonEvent(event=event, data=msgspec.json.decode(data, type=dict), id=event_id)


INBOX_PAGE_MAX = 1_000  # the most one answer has
_GONE = ("daemon_unreachable", "daemon_stopping")
_FULL = ("too_many_streams", "daemon_busy")


class EventFollower:
    """One program that listens."""

    def __init__(self, last: str | None) -> None:
        #: id of the last message, None before the first
        self.last = last
        #: messages that were read from the inbox and may come by the stream too
        self._stored: set[str] = set()
        self._backoff = Backoff(max_s=5.0)
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


SLICE_S = 25.0
#: a stream that says nothing for so long is broken: the daemon comments every 15 s
SILENCE_S = 45.0
_SECOND_NS = 1_000_000_000


@dataclass
class LongPoll:
    """What is left of one wait."""

    timeout_s: float
    clock: Clock = field(default_factory=system_clock)
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.05, max_s=2.0))

    def __post_init__(self) -> None:
        self._end_ns = self.clock.boot_ns() + round(self.timeout_s * _SECOND_NS)

    @property
    def left_s(self) -> float:
        """Return how much of the wait is left."""
        return max(0.0, (self._end_ns - self.clock.boot_ns()) / _SECOND_NS)

    def slice_s(self) -> float:
        """Return how long the next request may be held."""
        return min(SLICE_S, self.left_s)

    def pause_s(self, failure: PosthouseError) -> float:
        """Return how long to wait before asking again, or raise the failure when that makes no sense."""
        if failure.code != "daemon_unreachable" or self.left_s <= 0:
            raise failure
        return min(self.backoff.next_s(), self.left_s)
