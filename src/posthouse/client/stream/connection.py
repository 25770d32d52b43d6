"""One authenticated WebSocket connection: HELLO, AUTH, AUTHED, then frames both ways, and its write buffer.

The relay's key is checked before anything is signed for it: a proof names its relay, and a relay with another key
than the pinned one gets none. The write buffer delays nothing on purpose: the commands of one event-loop iteration
make one frame, and while the socket is full the next frame grows up to its bound. A list that was handed in as one
is never split. Its callers bound what waits in it. Reconnecting is the job of `link`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

from posthouse.client.failures import error_from
from posthouse.client.stream.frames import Command, read_frame, text_of, value_of, write_event
from posthouse.client.transport import Transport, translate_network_errors
from posthouse.client.trust.signing import Signer
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import EVENTS_PER_REQUEST, MIB

FRAME_COMMANDS = EVENTS_PER_REQUEST  # every relay takes as many in one list
FRAME_BYTES = 1 * MIB  # a frame of one event, or of one list, may be larger


class _Part(NamedTuple):
    #: commands joined by commas
    text: bytes
    commands: int


class WriteBuffer:
    """Gathers commands and sends them in frames."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._waiting: deque[_Part] = deque()
        self._wake = asyncio.Event()
        #: frames sent, for statistics
        self.frames = 0

    def put(self, command: bytes) -> None:
        """Take a command; it leaves with the next frame, in the order given."""
        self._add(_Part(command, 1))

    def put_list(self, commands: Sequence[bytes]) -> None:
        """Take commands that must stay together in one frame, one after the other."""
        self._add(_Part(b",".join(commands), len(commands)))

    async def run(self) -> None:
        """Send what gathers until cancelled; raises what sending raises."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                await self._send(_frame(self._take()))
                self.frames += 1

    def _add(self, part: _Part) -> None:
        self._waiting.append(part)
        self._wake.set()

    def _take(self) -> list[_Part]:
        taken = [self._waiting.popleft()]
        count, size = taken[0].commands, len(taken[0].text)
        while self._waiting:
            text, more = self._waiting[0]
            count, size = count + more, size + len(text)
            if count > FRAME_COMMANDS or size > FRAME_BYTES:
                break
            taken.append(self._waiting.popleft())
        return taken


def _frame(parts: Sequence[_Part]) -> bytes:
    """Return the frame of several commands; a single one stands alone."""
    if len(parts) == 1 and parts[0].commands == 1:
        return parts[0].text
    return b"[" + b",".join(part.text for part in parts) + b"]"


CheckRelay = Callable[[str], None]
#: looks at what a relay offers; what it raises ends the connection, with the field close_code if there is one
CheckFeatures = Callable[[Mapping[str, Any]], None]
_REASON_MAX_BYTES = 123  # of a closing frame


class Connection:
    """One WebSocket, authenticated as this node."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool], relay: str) -> None:
        self._socket = socket
        #: node id of the relay
        self.relay = relay
        #: meshes this node is a member of, as the relay said
        self.meshes: list[Any] = []
        #: the words with which the relay ended the connection
        self.close_reason = ""
        self.outgoing = WriteBuffer(self._write)

    async def frames(self) -> AsyncIterator[list[Command]]:
        """Yield the commands of each frame until the connection ends."""
        while True:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                self.close_reason = message.extra or ""
                return
            yield _read(message.data, self.relay)

    @property
    def close_code(self) -> int | None:
        """Why the relay ended the connection, if it said so."""
        return self._socket.close_code

    async def close(self) -> None:
        """End the connection politely, and at once if the relay does not answer."""
        try:
            async with asyncio.timeout(2):  # seconds for the closing handshake
                await self._socket.close()
        except TimeoutError:
            pass

    async def _write(self, frame: bytes) -> None:
        await self._socket.send_str(frame.decode())


async def dial(
    transport: Transport,
    signer: Signer,
    check_relay: CheckRelay,
    timeout_s: float,
    check_features: CheckFeatures | None = None,
) -> Connection:
    """Connect and authenticate, or raise why that is not possible now or at all."""
    with translate_network_errors(transport.url.origin):
        async with asyncio.timeout(timeout_s):
            socket = await transport.open_stream()
            try:
                return await _authenticate(socket, transport.url.origin, signer, check_relay, check_features)
            except PosthouseError as failure:
                await _refuse(socket, failure)
                raise
            except BaseException:
                await socket.close()
                raise


async def _refuse(socket: aiohttp.ClientWebSocketResponse[bool], failure: PosthouseError) -> None:
    """End a connection that this side does not want, and say why if there is a code for it."""
    code = failure.fields.get("close_code")
    if not isinstance(code, int):
        await socket.close()
        return
    told = {name: value for name, value in failure.fields.items() if name != "close_code"}
    reason = json.dumps({"code": failure.code, **told}, separators=(",", ":")).encode()
    if len(reason) > _REASON_MAX_BYTES:
        reason = json.dumps({"code": failure.code}, separators=(",", ":")).encode()
    await socket.close(code=code, message=reason)


async def _authenticate(
    socket: aiohttp.ClientWebSocketResponse[bool],
    origin: str,
    signer: Signer,
    check_relay: CheckRelay,
    check_features: CheckFeatures | None,
) -> Connection:
    hello = await _expect(socket, origin, "HELLO")
    relay, challenge = hello.get("relay"), hello.get("challenge")
    if not isinstance(relay, str) or not isinstance(challenge, str):
        raise error("answer_invalid", relay=origin, reason="HELLO without relay and challenge")
    check_relay(relay)
    if check_features is not None:
        features = hello.get("features")
        check_features(features if isinstance(features, dict) else {})
    proof = signer.prove(relay, ("challenge", challenge))
    await socket.send_str(write_event("AUTH", proof).decode())
    authed = await _expect(socket, origin, "AUTHED")
    connection = Connection(socket, relay)
    connection.meshes = authed.get("meshes") or []
    return connection


async def _expect(socket: aiohttp.ClientWebSocketResponse[bool], origin: str, verb: str) -> dict[str, Any]:
    message = await socket.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise error("relay_unreachable", relay=origin, reason=f"it closed the connection before {verb}")
    command = _read(message.data, origin)[0]
    if command.verb == "NOTICE" and len(command.arguments) == 2:
        raise _noticed(command, origin)
    value = value_of(command.arguments[0]) if command.verb == verb and command.arguments else None
    if not isinstance(value, dict):
        raise error("answer_invalid", relay=origin, reason=f"{command.verb[:40]!r} instead of {verb}")
    return value


def _read(data: str, origin: str) -> list[Command]:
    try:
        return read_frame(data)
    except (ValueError, RecursionError) as fault:
        raise error("answer_invalid", relay=origin, reason=f"a frame that is none: {fault}") from fault


def _noticed(command: Command, origin: str) -> PosthouseError:
    code, text = (text_of(argument) for argument in command.arguments)
    return error_from({"code": code, "detail": text, "status": 401}, origin)
