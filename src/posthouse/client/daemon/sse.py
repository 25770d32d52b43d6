"""Server-sent events, line by line: the daemon's stream as values.

Pure: lines in, events out. A comment is silence broken and nothing else. An event is complete at the empty line
behind it; one that a break tore is dropped, and comes again after the resume.
"""

from __future__ import annotations

import msgspec

from posthouse.client.daemon.values import DaemonEvent

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
