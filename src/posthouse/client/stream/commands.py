"""Commands of the stream as a client reads and writes them.

A frame is one JSON array with a verb in front, or an array of such arrays. Arguments stay bytes until somebody who
knows the verb reads them, so that an event is parsed once and strictly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from posthouse.model.event import Event, decode_event, encode_event

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_LISTS = msgspec.json.Decoder(list[list[msgspec.Raw]])
_TEXT = msgspec.json.Decoder(str)
_SEQ = msgspec.json.Decoder(int | None)
_encode = msgspec.json.Encoder().encode


class Command(NamedTuple):
    """One command: its verb and its arguments as JSON."""

    verb: str
    arguments: Sequence[msgspec.Raw]


class SentEvent(NamedTuple):
    """The arguments of EVENT from a relay."""

    sub: str
    event: Event
    #: None for an ephemeral event
    seq: int | None
    #: bytes of the event's JSON
    size: int


def read_frame(data: str | bytes) -> list[Command]:
    """Return the commands of a frame in order; ValueError when it is none."""
    outer = _ARRAY.decode(data)
    if outer and bytes(outer[0])[:1] == b"[":
        return [_command(parts) for parts in _LISTS.decode(data)]
    return [_command(outer)]


def read_event(arguments: Sequence[msgspec.Raw]) -> SentEvent:
    """Return what an EVENT command carries; ValueError or the error of the event when it is none."""
    if len(arguments) != 3:
        raise ValueError("EVENT has not three arguments")
    raw = bytes(arguments[1])
    return SentEvent(_TEXT.decode(arguments[0]), decode_event(raw), _SEQ.decode(arguments[2]), len(raw))


def value_of(argument: msgspec.Raw) -> Any:
    """Return an argument as plain JSON values."""
    return msgspec.json.decode(argument)


def text_of(argument: msgspec.Raw) -> str:
    """Return an argument that is a text; ValueError when it is none."""
    return _TEXT.decode(argument)


def write_command(*parts: Any) -> bytes:
    """Return one command as JSON."""
    return _encode(parts)


def write_event(verb: str, event: Event) -> bytes:
    """Return a command whose one argument is an event."""
    return b'["%b",%b]' % (verb.encode(), encode_event(event))


def _command(parts: Sequence[msgspec.Raw]) -> Command:
    if not parts:
        raise ValueError("an empty array is no command")
    return Command(_TEXT.decode(parts[0]), parts[1:])
