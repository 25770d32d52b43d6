"""WebSocket frames, the JSON commands inside the frames of a stream, and the buffer that writes them to a peer.

A server does not mask its frames, so all connections that get the same text share one bytes object. Only this module
knows the frame layout (RFC 6455, section 5.2). `read_commands` parses the outer arrays only: arguments stay bytes, so
an event is parsed once, by the stage that verifies it. The other arguments are validated strictly.

Frames go straight to the transport. The write buffer asks it how many bytes are unsent, so a slow reader is measured,
not guessed. It knows which events among them the peer has not taken, and how long the peer's kernel takes to
acknowledge.
"""

from __future__ import annotations

import asyncio
import socket as sockets
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from posthouse.http.outbound import Outlet
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
        #: its key was no longer trusted when it was signed
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
            raise _malformed("an empty array is not a command")
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
        raise _malformed("an empty array is not a command")
    first = bytes(parts[0])
    if first[0] != _QUOTE:
        raise _malformed("the first element of a command is its verb, as text")
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


CLOSE_S = 2.0  # for the closing handshake; a peer that does not answer in time is dropped
# Linux's struct tcp_info: the end, and the place of tcpi_rtt and tcpi_min_rtt, in microseconds
_TCP_INFO_BYTES, _TCP_INFO_RTT = 152, (68, 148)


class RoundTrip(NamedTuple):
    """How long the kernel of the peer takes to acknowledge."""

    smoothed_s: float
    shortest_s: float


class Flag:
    """An event of asyncio without its deque, which takes 0.7 KB of each idle connection even when it is empty.

    Most flags have no waiter, and an empty tuple takes no memory at all.
    """

    __slots__ = ("_is_set", "_waiters")

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    def is_set(self) -> bool:
        """Return True if it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it and wake every task that waits."""
        self._is_set = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Let later tasks wait."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is set; return at once if it is."""
        if self._is_set:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters = (*self._waiters, waiter)
        try:
            await waiter
        finally:
            self._waiters = tuple(each for each in self._waiters if each is not waiter)


class WriteBuffer:
    """Writes frames to one transport and knows how much of them the peer has not taken."""

    def __init__(
        self,
        transport: asyncio.Transport,
        drain: Callable[[], Awaitable[None]],
        outlet: Outlet,
        *,
        max_events: int,
        max_bytes: int,
    ) -> None:
        self._transport = transport
        self._drain = drain
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._outlet = outlet
        #: (bytes sent once the frame is, events in it), oldest first, for frames that may be unsent. A list, because an
        #: empty deque takes 0.7 KB of each idle connection.
        self._ledger: list[tuple[int, int]] = []
        self._unsent_events = 0
        #: whether the kernel did not take all of the last write
        self.was_behind = False
        #: frames and their events that wait for `uncork`; None: frames are written at once
        self._corked: list[tuple[bytes, int]] | None = None
        # Without a water mark every write is tried at once, so unsent bytes are those that the kernel did not take.
        # The high mark is 1, not 0: a TLS transport pauses at the high mark itself and would never resume from 0.
        transport.set_write_buffer_limits(1, 0)

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def sent_bytes(self) -> int:
        """How many bytes the kernel has taken; grows while the peer reads."""
        return self._outlet.sent_bytes

    @property
    def unsent_events(self) -> int:
        self._drop_sent()
        return self._unsent_events

    def tcp_round_trip(self) -> RoundTrip | None:
        """Return the round trip that TCP has measured, or None where the kernel does not report it."""
        socket, option = self._transport.get_extra_info("socket"), getattr(sockets, "TCP_INFO", None)
        if socket is None or option is None:
            return None
        try:
            info = socket.getsockopt(sockets.IPPROTO_TCP, option, _TCP_INFO_BYTES)
        except OSError:  # not TCP, or gone
            return None
        if len(info) < _TCP_INFO_BYTES:
            return None
        smoothed_us, shortest_us = (int.from_bytes(info[at : at + 4], sys.byteorder) for at in _TCP_INFO_RTT)
        return RoundTrip(smoothed_us / 1e6, shortest_us / 1e6)

    def write(self, frame: bytes, events: int = 0) -> None:
        """Write an encoded frame that carries this number of events."""
        if self._transport.is_closing():
            return
        if self._corked is not None:
            self._corked.append((frame, events))
            return
        outlet = self._outlet
        self._transport.write(frame)
        outlet.written += len(frame)
        self.was_behind = self._transport.get_write_buffer_size() > 0
        if self.was_behind or outlet.counted or outlet.is_watched:
            outlet.note_unsent()
        if not self.was_behind:
            self._ledger.clear()
            self._unsent_events = 0
        elif events:
            self._ledger.append((outlet.written, events))
            self._unsent_events += events

    def cork(self) -> None:
        """Collect frames until `uncork`, so that the peer reads them together."""
        if self._corked is None:
            self._corked = []

    def uncork(self) -> None:
        """Write the collected frames at once."""
        corked, self._corked = self._corked, None
        if corked:
            self.write(b"".join([frame for frame, _events in corked]), sum([events for _frame, events in corked]))

    def hold(self, size: int) -> None:
        """Count bytes that wait in memory for this peer; a negative size once they were written or dropped."""
        self._outlet.hold(size)

    def has_room(self, size: int, events: int) -> bool:
        """Return True if this many more events fit into the bound; an empty buffer takes any frame."""
        unsent = self._transport.get_write_buffer_size()
        if unsent == 0:
            return True
        self._drop_sent()
        return self._unsent_events + events <= self._max_events and unsent + size <= self._max_bytes

    async def drain(self) -> None:
        """Wait until the kernel has taken everything, or the peer is gone."""
        await self._drain()

    def abort(self) -> None:
        """Drop the connection and everything unsent."""
        self._transport.abort()

    def abort_soon(self) -> None:
        """Drop the connection after CLOSE_S: an orderly close would wait forever for a peer that does not read."""
        asyncio.get_running_loop().call_later(CLOSE_S, self.abort)

    def _drop_sent(self) -> None:
        sent, ledger = self._outlet.sent_bytes, self._ledger
        count = 0
        for end, events in ledger:
            if end > sent:
                break
            self._unsent_events -= events
            count += 1
        del ledger[:count]
