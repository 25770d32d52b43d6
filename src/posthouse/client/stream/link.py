"""The stream to a relay, kept up: when a connection ends, another is made and every participant resumes.

Participants (publisher, subscriptions, receiver, locks) register the verbs they handle and are called when a
connection is up; then they send again whatever is unanswered. What they send while there is no connection is
dropped, because `resume` sends it anyway. A failure that waiting cannot cure (another key, a refused proof) ends the
link for good and fails all participants.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from posthouse.client.failures import Backoff
from posthouse.client.stream.connection import Connection
from posthouse.client.stream.frames import (
    Command,
    EventCommand,
    InvalidEvent,
    InvalidMessage,
    MessageCommand,
    read_items,
)
from posthouse.client.transport import translate_network_errors
from posthouse.model.errors import Fatal, PosthouseError, Transient, error


class ConnectionObserver:
    """Takes part in a link without saying anything."""

    def __init__(self, on_up: Callable[[], None], on_lost: Callable[[int | None, str], None]) -> None:
        self._on_up = on_up
        #: is told the code and the words with which the relay ended a connection, if it did
        self.take_lost = on_lost

    def resume(self) -> None:
        """Tell that a connection is up."""
        self._on_up()

    def fail(self, failure: PosthouseError) -> None:
        """Nothing is open here."""


log = logging.getLogger(__name__)  # the standard one: a library is silent unless its user asks
Handler = Callable[[Sequence[msgspec.Raw]], None]
OnEvent = Callable[[EventCommand | InvalidEvent], None]
OnMessage = Callable[[MessageCommand | InvalidMessage], None]
#: is told the code and the words with which the relay ended a connection, if it did
OnLost = Callable[[int | None, str], None]


class Participant(Protocol):
    """Somebody who uses the stream."""

    def resume(self) -> None:
        """Send again what is open: a connection is up."""
        ...

    def fail(self, failure: PosthouseError) -> None:
        """End everything that is open: there will be no connection any more."""
        ...


class Link:
    """One lasting stream over as many connections as it takes."""

    def __init__(
        self, dial: Callable[[], Awaitable[Connection]], backoff: Backoff, origin: str, *, is_verifying: bool
    ) -> None:
        self._dial = dial
        self._backoff = backoff
        self._origin = origin
        self._is_verifying = is_verifying
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._participants: list[Participant] = []
        self._handlers: dict[str, list[Handler]] = {}
        self._on_event: OnEvent | None = None
        self._on_mail: OnMessage | None = None
        self._on_lost: list[OnLost] = []
        #: reading the present connection
        self._serving: asyncio.Task[None] | None = None
        self._is_restarting = False
        #: why the link ended for good
        self.failure: PosthouseError | None = None
        #: why the last attempt to connect failed; None while a connection is up
        self.last_fault: PosthouseError | None = None
        #: connections made so far
        self.connections = 0

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    def join(
        self,
        participant: Participant,
        handlers: Mapping[str, Handler],
        on_event: OnEvent | None = None,
        *,
        on_mail: OnMessage | None = None,
        on_lost: OnLost | None = None,
    ) -> None:
        """Let somebody take part: the verbs it handles, and whether events or mail are for it."""
        self._participants.append(participant)
        for verb, handler in handlers.items():
            self._handlers.setdefault(verb, []).append(handler)
        self._on_event = on_event or self._on_event
        self._on_mail = on_mail or self._on_mail
        self._on_lost += [] if on_lost is None else [on_lost]

    async def start(self, *, is_patient: bool = False) -> None:
        """Make the first connection; raises why that failed, unless it is patient and waiting may help."""
        async with self._starting:
            if self.failure is not None:
                raise self.failure
            if self._task is not None:
                return
            connection = await (self._redial() if is_patient else self._dial())
            self._attach(connection)
            self._task = asyncio.create_task(self._keep_up(connection))

    def send(self, command: bytes) -> None:
        """Send a command with the next frame, if there is a connection."""
        if self._connection is not None:
            self._connection.outgoing.put(command)

    def send_list(self, commands: Sequence[bytes]) -> None:
        """Send commands together in one frame, if there is a connection."""
        if self._connection is not None:
            self._connection.outgoing.put_list(commands)

    def restart(self) -> None:
        """Go on over a new connection, at once: what only the end of a connection takes back is gone with it."""
        if self._serving is not None:
            self._is_restarting = True
            self._connection = None  # what is sent from now on is for the next one
            self._serving.cancel()

    async def close(self) -> None:
        """End the stream; what is still open fails with client_closed."""
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

    async def _redial(self) -> Connection:
        while True:
            if not self._is_restarting:
                await asyncio.sleep(self._backoff.next_s() if self.last_fault or self.connections else 0)
            self._is_restarting = False
            try:
                return await self._dial()
            except Transient as fault:
                self.last_fault = fault
                log.info("%s (attempt %d)", fault, self._backoff.attempts)

    def _attach(self, connection: Connection) -> None:
        self._connection, self.last_fault = connection, None
        self.connections += 1
        for participant in self._participants:
            participant.resume()

    async def _serve(self, connection: Connection) -> None:
        sending = asyncio.create_task(self._write(connection))
        reading = self._serving = asyncio.create_task(self._read(connection))
        try:
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connection = self._serving = None
            self.last_fault = error("relay_unreachable", relay=self._origin, reason="the connection was lost")
            sending.cancel()
            reading.cancel()
            results = await asyncio.gather(sending, reading, return_exceptions=True)
            for on_lost in self._on_lost:
                on_lost(connection.close_code, connection.close_reason)
            await connection.close()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError | Transient):
                raise result

    async def _write(self, connection: Connection) -> None:
        with translate_network_errors(self._origin):
            await connection.outgoing.run()

    async def _read(self, connection: Connection) -> None:
        async for commands in connection.frames():
            for item in await read_items(commands, self._origin, is_verifying=self._is_verifying):
                if isinstance(item, Command):
                    self._handle(item)
                elif isinstance(item, EventCommand | InvalidEvent):
                    if self._on_event is not None:
                        self._on_event(item)
                elif self._on_mail is not None:
                    self._on_mail(item)
            # only what comes after the greeting shows that the relay lets us stay
            self._backoff.reset()

    def _handle(self, command: Command) -> None:
        if command.verb == "NOTICE":
            log.info("notice of %s: %s", self._origin, b" ".join(bytes(part) for part in command.arguments).decode())
        # a verb that nobody handles is one of a newer relay, or of a part nobody asked for
        try:
            for handler in self._handlers.get(command.verb, ()):
                handler(command.arguments)
        except (ValueError, IndexError) as fault:
            raise error("answer_invalid", relay=self._origin, reason=f"{command.verb} is malformed: {fault}") from fault

    def _end(self, failure: PosthouseError) -> None:
        if self.failure is None:
            self.failure = failure
            for participant in self._participants:
                participant.fail(failure)
            if isinstance(failure, Fatal):
                log.error("the stream of %s ended: %s", self._origin, failure)
