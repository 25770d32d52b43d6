"""One authenticated WebSocket connection: HELLO, AUTH, AUTHED, then frames both ways, and its write buffer.

The relay's key is checked before this node signs anything for it: a proof names its relay, and a relay with another
key than the pinned one gets none. The write buffer adds no delay: the commands of one event-loop iteration make one
frame, and while the socket is full the next frame grows up to its bound. Commands added together are never split.
The callers bound what waits in the buffer. Reconnecting is the job of `link`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp

from posthouse.client.failures import error_from
from posthouse.client.stream.frames import Authed, Hello, Notice, decode_frame, read_frame, write_command
from posthouse.client.transport import CHANGE_S, Transport, translate_network_errors
from posthouse.client.trust.signing import Signer
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import EVENTS_PER_REQUEST, MIB

FRAME_COMMANDS = EVENTS_PER_REQUEST  # every relay accepts as many in one frame
FRAME_BYTES = 1 * MIB  # a single command, or commands added together, may exceed it


class WriteBuffer:
    """Collects commands and sends them in frames."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        #: commands of one group travel in one frame
        self._groups: deque[Sequence[bytes]] = deque()
        self._wake = asyncio.Event()
        #: frames sent so far
        self.frames = 0

    def put(self, *commands: bytes) -> None:
        """Add commands; they leave together in the next frame that has room, in the order added."""
        self._groups.append(commands)
        self._wake.set()

    def wake(self) -> None:
        """Look for commands in the next loop iteration, after the callbacks that are scheduled by now."""
        self._wake.set()

    async def run(self) -> None:
        """Send frames until cancelled or until sending raises."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._groups:
                await self._send(self._next_frame())
                self.frames += 1

    def _next_frame(self) -> bytes:
        commands = [*self._groups.popleft()]
        size = sum(map(len, commands))
        while self._groups:
            size += sum(map(len, self._groups[0]))
            if len(commands) + len(self._groups[0]) > FRAME_COMMANDS or size > FRAME_BYTES:
                break
            commands += self._groups.popleft()
        return commands[0] if len(commands) == 1 else b"[" + b",".join(commands) + b"]"


#: type of command -> handler
Handlers = Mapping[type, Callable[[Any], None]]
CheckRelay = Callable[[str], None]
#: receives the features of a relay; an exception refuses the connection, with its field close_code if it has one
CheckFeatures = Callable[[Mapping[str, Any]], None]
_CLOSE_TIMEOUT_S = 2.0
_REASON_MAX_BYTES = 123  # of a closing frame
C = TypeVar("C", Hello, Authed)


class Connection:
    """One WebSocket, authenticated as this node."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse[bool], origin: str, features: Mapping[str, Any]) -> None:
        self._socket = socket
        self._origin = origin
        #: what the relay supports, from HELLO
        self.features = features
        #: the relay's reason for ending the connection
        self.close_reason = ""
        self.outgoing = WriteBuffer(self._write_frame)

    async def read(self, handlers: Handlers, on_first_frame: Callable[[], None], *, is_verifying: bool) -> None:
        """Pass each command to the handler of its type until the connection ends; others are dropped."""
        is_first = True
        while True:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                self.close_reason = _close_reason(message.data, message.extra)
                return
            for command in await read_frame(message.data, self._origin, is_verifying=is_verifying):
                handler = handlers.get(type(command))
                if handler is not None:
                    handler(command)
            if is_first:
                is_first = False
                on_first_frame()

    async def write(self) -> None:
        """Send what is in the write buffer until cancelled; raises relay_unreachable if the connection ends."""
        with translate_network_errors(self._origin):
            await self.outgoing.run()

    @property
    def close_code(self) -> int | None:
        """The code with which the relay ended the connection, if it sent one."""
        return self._socket.close_code

    async def close(self) -> None:
        """End the connection with a closing handshake, or without one if the relay does not answer."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._socket.close()
        except TimeoutError:
            pass

    async def _write_frame(self, frame: bytes) -> None:
        await self._socket.send_str(frame.decode())


def _close_reason(data: object, reason: str | None) -> str:
    """Return the relay's reason for an end, or the failure that this end noticed: a lost connection, no pong."""
    return str(data) or type(data).__name__ if isinstance(data, BaseException) else reason or ""


async def dial(
    transport: Transport,
    signer: Signer,
    check_relay: CheckRelay,
    timeout_s: float,
    check_features: CheckFeatures | None = None,
) -> Connection:
    """Connect and authenticate; raises a Transient error if trying again later may help."""
    with transport.reaching() as address:
        origin = address.origin
        async with asyncio.timeout(min(timeout_s, CHANGE_S) if transport.others else timeout_s):
            socket = await transport.open_stream()
            try:
                features = await _authenticate(socket, origin, signer, check_relay, check_features)
            except PosthouseError as refusal:
                await _refuse(socket, refusal)
                raise transport.explain_refusal(refusal) from refusal
            except BaseException:
                await socket.close()
                raise
            return Connection(socket, origin, features)


async def _refuse(socket: aiohttp.ClientWebSocketResponse[bool], refusal: PosthouseError) -> None:
    """End a connection that this side refuses, and send the reason if the refusal has a close code."""
    code = refusal.fields.get("close_code")
    if not isinstance(code, int):
        await socket.close()
        return
    fields = {name: value for name, value in refusal.fields.items() if name != "close_code"}
    reason = json.dumps({"code": refusal.code, **fields}, separators=(",", ":")).encode()
    if len(reason) > _REASON_MAX_BYTES:
        reason = json.dumps({"code": refusal.code}, separators=(",", ":")).encode()
    await socket.close(code=code, message=reason)


async def _authenticate(
    socket: aiohttp.ClientWebSocketResponse[bool],
    origin: str,
    signer: Signer,
    check_relay: CheckRelay,
    check_features: CheckFeatures | None,
) -> Mapping[str, Any]:
    """Prove this node's key to the relay; return the relay's features."""
    hello = (await _expect(socket, origin, Hello)).info
    relay, challenge = hello.get("relay"), hello.get("challenge")
    if not isinstance(relay, str) or not isinstance(challenge, str):
        raise error("answer_invalid", relay=origin, reason="HELLO without relay and challenge")
    check_relay(relay)
    given = hello.get("features")
    features: Mapping[str, Any] = given if isinstance(given, dict) else {}
    if check_features is not None:
        check_features(features)
    proof = signer.prove(relay, ("challenge", challenge))
    await socket.send_str(write_command("AUTH", proof).decode())
    await _expect(socket, origin, Authed)
    signer.note_login(proof)
    return features


async def _expect(socket: aiohttp.ClientWebSocketResponse[bool], origin: str, expected: type[C]) -> C:
    message = await socket.receive()
    verb = expected.__struct_config__.tag
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise error("relay_unreachable", relay=origin, reason=f"it closed the connection before {verb}")
    command = next(iter(decode_frame(message.data, origin)), None)
    if isinstance(command, expected):
        return command
    if isinstance(command, Notice):
        raise error_from({"code": command.code, "detail": command.text, "status": 401}, origin)
    raise error("answer_invalid", relay=origin, reason=f"it sent another command instead of {verb}")
