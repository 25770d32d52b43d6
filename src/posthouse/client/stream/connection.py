"""The stream to a relay: authenticated WebSocket connections, one at a time, and the link that keeps one up.

A connection begins with HELLO, AUTH and AUTHED; then frames go both ways. The relay's key is checked before this node
signs anything for it: a proof names its relay, and a relay whose key is not the pinned one gets none. The write buffer
adds no delay: the commands of one event-loop iteration make one frame, and while the socket is full the next frame
grows up to its bound. Commands added together are never split. Callers bound the number of commands that wait in the
buffer.

After a connection ends, the link makes another and its participants resume.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp

from posthouse.client.failures import Backoff, error_from
from posthouse.client.stream.frames import Authed, Hello, Notice, decode_frame, read_frame, write_command
from posthouse.client.transport import CHANGE_S, Transport, translate_network_errors
from posthouse.client.trust.signing import Signer
from posthouse.model.errors import Fatal, PosthouseError, Transient, error
from posthouse.model.limits import EVENTS_PER_REQUEST, MIB

log = logging.getLogger(__name__)  # the standard logging: a library is silent unless its user configures it
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
        """Send waiting commands in the next loop iteration, after the callbacks that are already scheduled."""
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
        """Send the contents of the write buffer until cancelled; raises relay_unreachable if the connection ends."""
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


#: close code and reason of the relay, if it sent them
OnLost = Callable[[int | None, str], None]


class Link:
    """One lasting stream over as many connections as it takes.

    Participants (pending commands, receiver, subscriptions) register handlers for the commands of the relay and
    callbacks for the connection. A command sent without a connection is dropped, because a participant sends everything
    open again in `on_up`, in the order the participants joined. An error that reconnecting cannot fix (another relay
    key, a refused proof, a malformed frame, an exception in a handler) ends the link permanently, and every participant
    gets it in `on_end`: no caller may keep waiting on a dead link.
    """

    def __init__(
        self, dial: Callable[[], Awaitable[Connection]], backoff: Backoff, origin: str, *, is_verifying: bool
    ) -> None:
        #: the relay's address, for errors
        self.origin = origin
        self.is_verifying = is_verifying
        self._dial = dial
        self._backoff = backoff
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._on_up: list[Callable[[], None]] = []
        self._on_lost: list[OnLost] = []
        self._on_end: list[Callable[[PosthouseError], None]] = []
        #: reads the current connection
        self._reading: asyncio.Task[None] | None = None
        self._is_restarting = False
        #: the error that ended the link permanently
        self.failure: PosthouseError | None = None
        #: the error of the last attempt to connect; None while a connection is up
        self.last_error: PosthouseError | None = None
        #: connections made so far
        self.connections = 0

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    def supports(self, feature: str) -> bool:
        """Return True if the relay of the current connection announced a feature."""
        return bool(self.feature(feature))

    def feature(self, name: str) -> Any:
        """Return the parameters of a feature that the relay of the current connection announced; None without it."""
        return None if self._connection is None else self._connection.features.get(name)

    def join(
        self,
        handlers: Handlers | None = None,
        *,
        on_up: Callable[[], None] | None = None,
        on_lost: OnLost | None = None,
        on_end: Callable[[PosthouseError], None] | None = None,
    ) -> None:
        """Register a participant: handlers by type of command, and callbacks of the connection.

        `on_up` runs after each connection is made, `on_lost` after each one is lost, `on_end` once, at the end.
        """
        self._handlers |= handlers or {}
        self._on_up += [on_up] if on_up is not None else []
        self._on_lost += [on_lost] if on_lost is not None else []
        self._on_end += [on_end] if on_end is not None else []

    async def start(self, *, is_patient: bool = False) -> None:
        """Make the first connection; raises if that fails, unless `is_patient` and trying again may help."""
        if self._has_started():  # the usual case, without a lock
            return
        async with self._starting:
            if self._has_started():
                return
            connection = await (self._redial() if is_patient else self._dial())
            try:
                self._check_open()  # it may have been closed meanwhile
            except PosthouseError:
                await connection.close()
                raise
            self._attach(connection)
            self._task = asyncio.create_task(self._keep_up(connection))

    def _has_started(self) -> bool:
        self._check_open()
        return self._task is not None

    def send(self, *commands: bytes) -> None:
        """Send commands together in the next frame, if there is a connection."""
        if self._connection is not None:
            self._connection.outgoing.put(*commands)

    def send_soon(self, prepare: Callable[[], None]) -> None:
        """Call `prepare`, which sends commands, in the next loop iteration; its frame leaves in the same one."""
        asyncio.get_running_loop().call_soon(prepare)
        if self._connection is not None:
            self._connection.outgoing.wake()

    def restart(self) -> None:
        """Replace the connection at once; the relay closes a mailbox only when its connection ends."""
        if self._reading is not None:
            self._is_restarting = True
            self._connection = None  # commands from now on belong to the next connection
            self._reading.cancel()

    async def close(self) -> None:
        """End the stream; open calls fail with client_closed."""
        self._end(error("client_closed"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep_up(self, connection: Connection) -> None:
        try:
            while True:
                await self._serve(connection)
                connection = await self._redial()
                self._attach(connection)
        except PosthouseError as failure:
            self._end(failure)
        except Exception as defect:
            log.exception("the stream of %s failed unexpectedly", self.origin)
            self._end(error("internal", reason=f"{type(defect).__name__} in the stream of {self.origin}"))

    async def _redial(self) -> Connection:
        while True:
            if not self._is_restarting:
                await asyncio.sleep(self._backoff.next_s() if self.last_error or self.connections else 0)
            self._is_restarting = False
            try:
                return await self._dial()
            except Transient as unreachable:
                self.last_error = unreachable
                log.info("%s (attempt %d)", unreachable, self._backoff.attempts)

    def _attach(self, connection: Connection) -> None:
        self._connection, self.last_error = connection, None
        self.connections += 1
        for on_up in self._on_up:
            on_up()

    async def _serve(self, connection: Connection) -> None:
        """Read and write until the connection ends; raises an error that reconnecting cannot fix."""
        writing = asyncio.create_task(connection.write())
        # only a frame after the greeting shows that the relay keeps the connection: then the back-off ends
        reading = asyncio.create_task(
            connection.read(self._handlers, self._backoff.reset, is_verifying=self.is_verifying)
        )
        self._reading = reading
        try:
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connection = self._reading = None
            self.last_error = error("relay_unreachable", relay=self.origin, reason="the connection was lost")
            writing.cancel()
            reading.cancel()
            try:
                results = await asyncio.gather(writing, reading, return_exceptions=True)
                for on_lost in self._on_lost:
                    on_lost(connection.close_code, connection.close_reason)
            finally:  # the link may be closed while the tasks of a lost connection end
                await connection.close()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError | Transient):
                raise result

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _end(self, failure: PosthouseError) -> None:
        if self.failure is None:
            self.failure = failure
            for on_end in self._on_end:
                on_end(failure)
            if isinstance(failure, Fatal):
                log.error("the stream of %s ended: %s", self.origin, failure)
