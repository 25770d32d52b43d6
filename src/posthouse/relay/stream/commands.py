"""Commands in a text frame: a JSON array whose first element is the verb, or an array of such arrays.

Only the outer shape is read here; arguments stay bytes, so that an event is parsed once, by whoever checks it. A frame
is bounded before it comes here; the number of its commands is bounded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import JSON_MAX_DEPTH

_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_LISTS = msgspec.json.Decoder(list[list[msgspec.Raw]])
_TEXT = msgspec.json.Decoder(str)
_QUOTE = ord('"')


class Command(NamedTuple):
    """One command: its verb and its arguments as JSON."""

    verb: str
    arguments: Sequence[bytes]


def read_commands(data: bytes, max_commands: int) -> list[Command]:
    """Return the commands of a frame in order, or raise frame_malformed, json_invalid or json_too_deep."""
    try:
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
    return Command(_TEXT.decode(first), [bytes(part) for part in parts[1:]])


def _malformed(reason: str) -> PosthouseError:
    return error("frame_malformed", reason=reason)
