"""Stored events as HTTP answers them: the event's own fields, and its seq.

What comes back is held against what was asked for: a relay could otherwise answer with another event, properly signed
by somebody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from posthouse.model.errors import error
from posthouse.model.event import Event


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    pubkey: str
    created_at_ns: int
    kind: int
    tags: tuple[tuple[str, ...], ...]
    content: str
    sig: str
    seq: int

    def stored(self) -> Stored:
        event = Event(
            id=self.id,
            pubkey=self.pubkey,
            created_at_ns=self.created_at_ns,
            kind=self.kind,
            tags=self.tags,
            content=self.content,
            sig=self.sig,
        )
        return Stored(event, self.seq)


class _PageBody(msgspec.Struct, forbid_unknown_fields=True):
    events: list[_Body]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Stored:
    """An event and its place in the relay's journal."""

    event: Event
    seq: int


@dataclass(frozen=True, slots=True)
class Page:
    """A part of an answer, and where the next part begins; no cursor: that was all."""

    events: Sequence[Stored]
    cursor: str | None


_BODY = msgspec.json.Decoder(_Body)
_PAGE = msgspec.json.Decoder(_PageBody)


def read_stored(data: bytes, origin: str, is_wanted: Callable[[Event], bool]) -> Stored:
    """Return the event of an answer, or raise answer_invalid."""
    try:
        stored = _BODY.decode(data).stored()
    except ValueError as fault:
        raise error("answer_invalid", relay=origin, reason=str(fault)) from fault
    _expect(stored, origin, is_wanted)
    return stored


def read_page(data: bytes, origin: str, is_wanted: Callable[[Event], bool]) -> Page:
    """Return the events of an answer, or raise answer_invalid."""
    try:
        body = _PAGE.decode(data)
    except ValueError as fault:
        raise error("answer_invalid", relay=origin, reason=str(fault)) from fault
    page = Page([each.stored() for each in body.events], body.cursor)
    for stored in page.events:
        _expect(stored, origin, is_wanted)
    return page


def _expect(stored: Stored, origin: str, is_wanted: Callable[[Event], bool]) -> None:
    if not is_wanted(stored.event):
        raise error("answer_invalid", relay=origin, reason=f"event {stored.event.id} was not asked for")
