"""The headers of the newest events, kept for all open pages: one upstream feeds any number of tabs.

Rows are numbered in the order in which the console received them; a page resumes after the last number it has. A row
of the relay also carries the relay's cursor, so that a page whose next rows the feed has dropped gets the missing
events from the relay itself. Only headers are kept: never the content of a message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from posthouse.client.daemon import DaemonEvent
from posthouse.model.clock import parse_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.event import CONFIRMATION, LAKE_ROOT, MESSAGE, PROFILE, RECEIPT, Event
from posthouse.model.message import read_message

KEPT_ROWS = 5_000
RELAY, DAEMON = "relay", "daemon"
_KINDS = {
    MESSAGE: "message",
    CONFIRMATION: "confirmation",
    RECEIPT: "receipt",
    PROFILE: "profile",
    LAKE_ROOT: "lake seal",
}
_SHOWN_TAGS = 4
_SHOWN_CHARACTERS = 40  # of the value of a tag
#: events of the daemon that need the attention of a person
_WARNINGS = frozenset({"outbox_dead", "outbox_pressure", "system"})


class LiveRow(NamedTuple):
    """The header of one event."""

    number: int
    #: relay or daemon
    source: str
    kind: str
    at_ns: int
    #: node id, empty for events of the daemon
    sender: str = ""
    from_agent: str = ""
    #: node id or #topic
    to: str = ""
    to_agent: str = ""
    detail: str = ""
    event_id: str = ""
    #: cursor after this event at the relay
    cursor: str | None = None

    @property
    def is_warning(self) -> bool:
        """True for events that need the attention of a person."""
        return self.kind in _WARNINGS


class LiveFeed:
    """The newest rows, and the streams of pages that wait for more."""

    def __init__(self, kept: int = KEPT_ROWS) -> None:
        self._rows: deque[LiveRow] = deque(maxlen=kept)
        self._waiting: set[asyncio.Event] = set()
        self.newest = 0

    def add(self, make: Callable[[int], LiveRow]) -> None:
        """Add the row that `make` returns for the next number, and notify the pages."""
        self.newest += 1
        self._rows.append(make(self.newest))
        for waiting in self._waiting:
            waiting.set()

    def after(self, number: int) -> list[LiveRow]:
        """Return the rows after a number, oldest first."""
        return [row for row in self._rows if row.number > number]

    def has_all_after(self, number: int) -> bool:
        """Return True if no row after a number was forgotten."""
        return number >= self.newest or bool(self._rows and self._rows[0].number <= number + 1)

    @contextmanager
    def listen(self) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever there are new rows."""
        waiting = asyncio.Event()
        self._waiting.add(waiting)
        try:
            yield waiting
        finally:
            self._waiting.discard(waiting)


def row_of_event(number: int, event: Event, cursor: str | None) -> LiveRow:
    """Return the header of an event of the relay."""
    kind = _KINDS.get(event.kind, f"kind {event.kind}")
    if event.kind == MESSAGE:
        try:
            return _message_row(number, event, cursor)
        except PosthouseError:
            kind = "malformed message"
    return LiveRow(
        number, RELAY, kind, event.created_at_ns, event.pubkey, to=next(iter(event.values("p")), ""),
        detail=_about(event), event_id=event.id, cursor=cursor,
    )  # fmt: skip


def _about(event: Event) -> str:
    """Return a short description, from its tags, of an event that is not a message."""
    if event.kind in (CONFIRMATION, RECEIPT):
        count = len(event.values("e"))
        return f"{count} message" if count == 1 else f"{count} messages"
    tags = [tag for tag in event.tags if len(tag) > 1 and tag[0] not in ("p", "h")]
    shown = " ".join(f"{tag[0]}={tag[1][:_SHOWN_CHARACTERS]}" for tag in tags[:_SHOWN_TAGS])
    return f"{shown} and {len(tags) - _SHOWN_TAGS} more" if len(tags) > _SHOWN_TAGS else shown


def _message_row(number: int, event: Event, cursor: str | None) -> LiveRow:
    message = read_message(event)
    to = message.recipient or f"#{message.destination_ref}"
    words = ["an answer"] if message.reply_to else []
    words += [f"{len(event.content.encode()):,} B"]
    return LiveRow(
        number, RELAY, "message", event.created_at_ns, event.pubkey, message.from_agent, to, message.to_agent,
        ", ".join(words), event.id, cursor,
    )  # fmt: skip


def row_of_daemon_event(number: int, event: DaemonEvent, own_node: str) -> LiveRow:
    """Return the header of an event of the daemon; the body of a message is left out."""
    data: Mapping[str, Any] = event.data
    if event.event == "message":
        to = f"#{data['topic']}" if data.get("topic") else own_node
        detail = "arrived in the inbox"
        return LiveRow(
            number, DAEMON, "message", parse_utc(data["ts"]), str(data.get("sender", "")),
            str(data.get("from_agent") or ""), to, str(data.get("agent") or ""), detail,
            str(data.get("message_id", "")),
        )  # fmt: skip
    detail = " ".join(f"{name}={value}" for name, value in data.items() if name not in ("ts", "mesh") and value)
    return LiveRow(number, DAEMON, event.event, parse_utc(data["ts"]), detail=detail[:500])
