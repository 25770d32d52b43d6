"""The stream to a relay, kept up: after a connection ends, the link makes another and its participants resume.

Participants (pending commands, receiver, subscriptions) register handlers for the commands of the relay and callbacks
for the connection. A command sent without a connection is dropped, because a participant sends everything open again
in `on_up`, in the order the participants joined. An error that reconnecting cannot cure (another relay key, a refused
proof, a malformed frame, an exception in a handler) ends the link for good, and every participant gets it in `on_end`:
no caller may keep waiting on a link that is dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from posthouse.client.failures import Backoff
from posthouse.client.stream.connection import Connection, Handlers
from posthouse.model.errors import Fatal, PosthouseError, Transient, error

log = logging.getLogger(__name__)  # the standard logging: a library is silent unless its user configures it
#: close code and reason of the relay, if it sent them
OnLost = Callable[[int | None, str], None]


class Link:
    """One lasting stream over as many connections as it takes."""

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
        #: reads the present connection
        self._reading: asyncio.Task[None] | None = None
        self._is_restarting = False
        #: the error that ended the link for good
        self.failure: PosthouseError | None = None
        #: the error of the last attempt to connect; None while a connection is up
        self.last_error: PosthouseError | None = None
        #: connections made so far
        self.connections = 0

    @property
    def is_up(self) -> bool:
        return self._connection is not None

    def supports(self, feature: str) -> bool:
        """Return True if the relay of the present connection announced a feature."""
        return bool(self.feature(feature))

    def feature(self, name: str) -> Any:
        """Return what the relay of the present connection announced about a feature; None if it did not."""
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
        async with self._starting:
            if self.failure is not None:
                raise self.failure
            if self._task is not None:
                return
            connection = await (self._redial() if is_patient else self._dial())
            self._attach(connection)
            self._task = asyncio.create_task(self._keep_up(connection))

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
        """Read and write until the connection ends; raises an error that reconnecting cannot cure."""
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
            results = await asyncio.gather(writing, reading, return_exceptions=True)
            for on_lost in self._on_lost:
                on_lost(connection.close_code, connection.close_reason)
            await connection.close()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError | Transient):
                raise result

    def _end(self, failure: PosthouseError) -> None:
        if self.failure is None:
            self.failure = failure
            for on_end in self._on_end:
                on_end(failure)
            if isinstance(failure, Fatal):
                log.error("the stream of %s ended: %s", self.origin, failure)
