"""WebSocket frames, and the JSON commands inside the frames of a stream.

A server does not mask its frames, so all connections that get the same text share one bytes object. Only this module
knows the frame layout (RFC 6455, section 5.2). `read_commands` parses the outer arrays only: arguments stay bytes, so
an event is parsed once, by the stage that verifies it. The other arguments are validated strictly.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.filters import Filter, filter_from_json
from posthouse.model.limits import FILTERS_PER_SUBSCRIPTION, JSON_MAX_DEPTH
from posthouse.model.strict_json import parse_json

# first byte of a frame: the bit for the final fragment, and the opcode
_TEXT = 0x81
_BINARY = 0x82
_CLOSE = 0x88
_PING = 0x89
_PONG = 0x8A
_encode = msgspec.json.Encoder().encode


def data_frame(opcode: int, payload: bytes) -> bytes:
    """Return a text frame (the payload is UTF-8) or a binary frame."""
    size = len(payload)
    if size < 126:
        return bytes((opcode, size)) + payload
    if size < 65_536:
        return bytes((opcode, 126)) + size.to_bytes(2, "big") + payload
    return bytes((opcode, 127)) + size.to_bytes(8, "big") + payload


text_frame = partial(data_frame, _TEXT)
binary_frame = partial(data_frame, _BINARY)


def ping_frame(payload: bytes) -> bytes:
    """Return a ping; the payload has at most 125 bytes and comes back with the pong."""
    return bytes((_PING, len(payload))) + payload


def pong_frame(payload: bytes) -> bytes:
    """Return the answer to a ping."""
    return bytes((_PONG, len(payload))) + payload


def close_frame(code: int, reason: str) -> bytes:
    """Return the frame that ends a connection; the reason has at most 123 bytes."""
    payload = code.to_bytes(2, "big") + reason.encode()[:123]
    return bytes((_CLOSE, len(payload))) + payload


def command_text(*parts: Any) -> bytes:
    """Return one command as JSON text."""
    return _encode(parts)


class EncodedEvent:
    """An event as JSON, its seq, and the end of its EVENT command, which is the same for all subscriptions."""

    __slots__ = ("is_suspect", "raw", "seq", "tail")

    def __init__(self, raw: bytes, seq: int | None, *, is_suspect: bool = False) -> None:
        self.raw = raw
        #: None: the event is not stored
        self.seq = seq
        #: its key was not to be trusted any more when it was signed
        self.is_suspect = is_suspect
        mark = b',{"suspect":true}' if is_suspect else b""
        self.tail = b"%b,%b%b]" % (raw, b"null" if seq is None else b"%d" % seq, mark)


class SubscriptionFormat(Protocol):
    """How one subscription writes what it sends."""

    #: formats with equal keys write equal bytes, so their readers share them
    key: bytes

    def events(self, events: Sequence[EncodedEvent]) -> bytes:
        """Return events that go out together."""
        ...

    def stored_end(self, cursor: str | None) -> bytes:
        """Return the mark between stored and live events."""
        ...

    def closed(self, failure: PosthouseError, cursor: str | None) -> bytes:
        """Return why the subscription ends, and where to continue."""
        ...


class WebSocketFormat:
    """A subscription as commands in text frames."""

    def __init__(self, sub: str) -> None:
        self.sub = sub
        #: the beginning of every EVENT command
        self.key = b'["EVENT",' + _encode(sub) + b","

    def events(self, events: Sequence[EncodedEvent]) -> bytes:
        """Return one EVENT command, or a list of them."""
        if len(events) == 1:
            return text_frame(self.key + events[0].tail)
        return text_frame(b"[" + self.key + (b"," + self.key).join([event.tail for event in events]) + b"]")

    def stored_end(self, cursor: str | None) -> bytes:
        return text_frame(command_text("EOSE", self.sub, cursor))

    def closed(self, failure: PosthouseError, cursor: str | None) -> bytes:
        return text_frame(command_text("CLOSED", self.sub, failure.problem(), cursor))


def list_text(commands: Sequence[bytes]) -> bytes:
    """Return the frame text of commands: a single command stands alone, several are a list."""
    return commands[0] if len(commands) == 1 else b"[" + b",".join(commands) + b"]"


_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_LISTS = msgspec.json.Decoder(list[list[msgspec.Raw]])
_TEXT_DECODER = msgspec.json.Decoder(str)
_QUOTE = ord('"')


class Command(NamedTuple):
    """One command: its verb and its arguments as JSON."""

    verb: str
    arguments: Sequence[bytes]


def read_commands(data: bytes, max_commands: int) -> list[Command]:
    """Return the commands of a frame in order, or raise frame_malformed, json_invalid or json_too_deep.

    Arguments are UTF-8 from here on: the decoder does not look into those that it leaves as bytes.
    """
    try:
        str(data, "utf-8")
        outer = _ARRAY.decode(data)
        if not outer:
            raise _malformed("an empty array is no command")
        if bytes(outer[0])[:1] == b"[":
            if len(outer) > max_commands:
                raise _malformed(f"a list has at most {max_commands} commands")
            return [_command(command) for command in _LISTS.decode(data)]
        return [_command(outer)]
    except RecursionError as fault:
        raise error("json_too_deep", limit=JSON_MAX_DEPTH) from fault
    except msgspec.ValidationError as fault:
        raise _malformed("it is not an array, or not a list of arrays") from fault
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise error("json_invalid", reason=str(fault)) from fault


def _command(parts: Sequence[msgspec.Raw]) -> Command:
    if not parts:
        raise _malformed("an empty array is no command")
    first = bytes(parts[0])
    if first[0] != _QUOTE:
        raise _malformed("the first element of a command is its verb, a text")
    return Command(_TEXT_DECODER.decode(first), [bytes(part) for part in parts[1:]])


def _malformed(reason: str) -> PosthouseError:
    return error("frame_malformed", reason=reason)


SUB_MAX_CHARS = 64


def expect(arguments: Sequence[bytes], verb: str, form: str, least: int, most: int) -> None:
    """Raise frame_malformed unless there are `least` to `most` arguments."""
    if not least <= len(arguments) <= most:
        raise error("frame_malformed", reason=f"{verb} is {form}")


def read_sub(argument: bytes) -> str:
    """Return a subscription id."""
    sub = parse_json(argument)
    if type(sub) is not str or not 1 <= len(sub) <= SUB_MAX_CHARS:
        raise error("subscription_id_invalid", limit=SUB_MAX_CHARS)
    return sub


def read_filters(arguments: Sequence[bytes]) -> list[Filter]:
    """Return filters; without any filter every event matches, as with an empty one."""
    if len(arguments) > FILTERS_PER_SUBSCRIPTION:
        raise error("filter_invalid", field="filters", reason=f"there are more than {FILTERS_PER_SUBSCRIPTION}")
    return [filter_from_json(parse_json(argument)) for argument in arguments] or [Filter()]


def read_object(argument: bytes, fields: frozenset[str], verb: str) -> dict[str, Any]:
    """Return an object; raise if it has fields other than these."""
    value = parse_json(argument)
    if type(value) is not dict:
        raise error("frame_malformed", reason=f"the options of {verb} are an object")
    if unknown := sorted(value.keys() - fields):
        raise error("frame_malformed", reason=f"{verb} has no option {unknown[0]!r}")
    return value
