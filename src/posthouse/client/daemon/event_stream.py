"""Wait for messages and follow events over restarts of the daemon; pure state, no I/O.

`EventReader` parses server-sent events line by line; an event torn by a lost connection is dropped, and the daemon
sends it again after the resume. `EventFollower` resumes after the last message, because the daemon keeps only
messages; before the first message it reads the inbox once the stream is open and drops what the stream repeats.
`LongPoll` polls in slices, so it notices a restarted daemon. Times are boot times: a step of the wall clock changes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from posthouse.client.daemon.calls import InboxFilter, MailConditions
from posthouse.client.daemon.local_api import DaemonEvent, InboxItem
from posthouse.client.failures import Backoff
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import SECOND_NS

RESUME_HEADER = "Last-Event-ID"


class EventReader:
    """Assembles the events of one stream from its lines."""

    def __init__(self) -> None:
        self._event = ""
        self._id: str | None = None
        self._data: list[str] = []

    def take(self, line: bytes) -> DaemonEvent | None:
        """Take the next line; return the event that it completes, or None."""
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


INBOX_PAGE_MAX = 1_000  # the daemon returns no more in one answer
_GONE = ("daemon_unreachable", "daemon_stopping")
_FULL = ("too_many_streams", "daemon_busy")


class EventFollower:
    """The position of one reader of events, and its decisions about retries."""

    def __init__(self, last: str | None) -> None:
        #: id of the last message, None before the first
        self.last = last
        #: ids of the last messages of the meshes that had one; under "" the one after which it started
        self._last_of_mesh: dict[str, str] = {} if last is None else {"": last}
        #: messages read from the inbox, which the stream may repeat
        self._stored: set[str] = set()
        self._backoff = Backoff(max_s=5.0)
        #: the daemon has answered once, so a stopped one is awaited
        self._was_reached = False
        #: a stream was open once, so a refused one is retried
        self._was_open = False

    def start_after(self, newest: Sequence[InboxItem]) -> None:
        """Start after the newest message of the inbox, if it has one."""
        self.last = newest[0].id if newest else None
        self._last_of_mesh = {item.mesh: item.id for item in newest}
        self._was_reached = True

    def headers(self) -> Mapping[str, str]:
        """Return the headers of the next attempt."""
        return {} if self.last is None else {RESUME_HEADER: ",".join(self._last_of_mesh.values())}

    def on_open(self) -> None:
        """Note that the stream is open: from now on a refused stream is retried."""
        self._was_reached = self._was_open = True

    def is_new(self, event: DaemonEvent) -> bool:
        """Return True unless the event was read from the inbox before."""
        return event.id not in self._stored

    def note_stored(self, item: InboxItem) -> DaemonEvent:
        """Note a message of the inbox and return its event."""
        self._stored.add(item.id)
        return self.note(DaemonEvent("message", {"ts": item.received_at, **msgspec.structs.asdict(item)}, item.id))

    def note(self, event: DaemonEvent) -> DaemonEvent:
        """Note an event as the last one and return it."""
        self._backoff.reset()
        if event.id is not None:
            self.last = event.id
            self._last_of_mesh[str(event.data.get("mesh"))] = event.id
        return event

    def raise_unless_retryable(self, failure: PosthouseError) -> None:
        """Raise an error unless another attempt may help."""
        if failure.code == "inbox_item_unknown" and self._was_open:  # the inbox was replaced: start with its content
            self.last = None
            self._last_of_mesh.clear()
        elif not (failure.code in _GONE and self._was_reached) and not (failure.code in _FULL and self._was_open):
            raise failure

    def pause_s(self) -> float:
        """Return the delay before the next attempt; it grows with each failed one."""
        return self._backoff.next_s()


_WAITING_READER = "wait"
_CONSUMED_PAGE = 100


def waiting_filter(given: InboxFilter) -> InboxFilter:
    """Return the filter of a wait: unread mail after the mark of `wait`, or all mail after a named reader's mark."""
    if given.get("reader") is not None:
        return given
    return {"unread": True, **given, "reader": _WAITING_READER}


def consuming_filter(reader: str, given: MailConditions) -> InboxFilter:
    """Return the filter of a consumer: all mail after its cursor."""
    filter_: InboxFilter = {"reader": reader, "limit": _CONSUMED_PAGE}
    filter_.update(given)  # type: ignore[typeddict-item]
    return filter_


SLICE_S = 25.0
#: a stream silent for this long is dead: the daemon sends a comment every 15 s
SILENCE_S = 45.0


@dataclass
class LongPoll:
    """One wait for messages, polled in slices."""

    timeout_s: float
    clock: Clock = field(default_factory=system_clock)
    backoff: Backoff = field(default_factory=lambda: Backoff(first_s=0.05, max_s=2.0))

    def __post_init__(self) -> None:
        self._end_ns = self.clock.boot_ns() + self.timeout_s * SECOND_NS

    @property
    def left_s(self) -> float:
        """The rest of the wait."""
        return max(0.0, (self._end_ns - self.clock.boot_ns()) / SECOND_NS)

    def slice_s(self) -> float:
        """Return how long the daemon may hold the next request."""
        return min(SLICE_S, self.left_s)

    def pause_s(self, failure: PosthouseError) -> float:
        """Return the delay before the next request, or raise the error if another one cannot help."""
        if failure.code not in _GONE or self.left_s <= 0:
            raise failure
        return min(self.backoff.next_s(), self.left_s)
