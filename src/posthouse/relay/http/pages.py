"""Stored events as JSON, from bytes that were serialised when they were accepted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from posthouse.answer import Answer
from posthouse.relay.store.interface import StoredEvent


def stored_event(event: StoredEvent) -> bytes:
    """Return a stored event as JSON: the event's own fields, and its seq."""
    return b'%b,"seq":%d}' % (event.raw[:-1], event.seq)


def events_answer(events: Sequence[StoredEvent], cursor: str | None) -> Answer:
    """Return a page of events."""
    body = b'{"events":[%b],"cursor":%b}' % (b",".join(map(stored_event, events)), msgspec.json.encode(cursor))
    return Answer(200, body)
