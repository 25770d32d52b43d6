"""The Pinch wire of one relay: who is connected under which address, and what connections share.

An address has one connection. A second login wins only once the first has failed to answer a ping; so an agent that
lost its network comes back at once, and a copy of an agent cannot take the messages of the one that runs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import Any
from weakref import WeakValueDictionary

import structlog

from posthouse.keys import NodeKey
from posthouse.relay.accept.buckets import Buckets
from posthouse.relay.core import Core
from posthouse.relay.metrics import Meters
from posthouse.relay.pinch.blocks import Blocks
from posthouse.relay.pinch.connection import REPLACED, PinchConnection
from posthouse.relay.pinch.gather import Gathering
from posthouse.relay.pinch.jobs import Outcome
from posthouse.relay.pinch.line import POLICY
from posthouse.relay.pinch.settings import PinchSettings
from posthouse.relay.pinch.wire import type_name

log = structlog.get_logger(__name__)

_LOOKS_PER_PONG = 5  # so that a ping, or the end of a dead peer, is at most a fifth late


class Pinch:
    """Connections of Pinch agents."""

    def __init__(self, core: Core, key: NodeKey, meters: Meters, settings: PinchSettings) -> None:
        self.core = core
        self.settings = settings
        self.rates = Buckets(settings.rate)
        self.gathering = Gathering(core.mailboxes)
        self.blocks = Blocks(core.changes, core.mailboxes)
        self.is_stopping = False
        #: every connection, those that have not logged in included
        self.connections: dict[PinchConnection, None] = {}
        self._key = key
        self._meters = meters
        self._by_address: dict[str, PinchConnection] = {}
        self._gates: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="keep Pinch connections")

    def __len__(self) -> int:
        """How many agents are connected."""
        return len(self._by_address)

    async def admit(self, connection: PinchConnection, address: str) -> bool:
        """Let a connection be that of an address; False when another one is alive."""
        gate = self._gates.get(address)
        if gate is None:
            gate = self._gates[address] = asyncio.Lock()
        async with gate:
            present = self._by_address.get(address)
            if present is not None and await present.is_alive():
                self._meters.count("posthouse_relay_pinch_logins_total", "already_connected")
                return False
            if present is not None:
                present.end(POLICY, REPLACED)
                present.release_mailbox()
            connection.address = address
            self._by_address[address] = connection
            self._meters.count("posthouse_relay_pinch_logins_total", "accepted")
            return True

    def refuse_login(self) -> None:
        """Count a login that failed."""
        self._meters.count("posthouse_relay_pinch_logins_total", "failed")

    def leave(self, connection: PinchConnection) -> None:
        """Forget a connection."""
        self.connections.pop(connection, None)
        if self._by_address.get(connection.address) is connection:
            del self._by_address[connection.address]

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that outlives the connection that asked for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def claim_code(self, public_key: bytes) -> str:
        """Return the code that goes with a key at this relay: eight digits, the same each time."""
        proof = self._key.sign(b"pinch-claim-v1\0" + public_key)
        return hashlib.sha256(proof).hexdigest()[:8]

    def note_outcome(self, message_type: int, outcome: Outcome) -> None:
        """Count what became of an envelope."""
        self._meters.count("posthouse_relay_pinch_envelopes_total", type_name(message_type), outcome.value)

    def note_refused(self, address: str, message_type: int, code: str) -> None:
        """Count a refusal, in the metrics and for the journal."""
        self._meters.count("posthouse_relay_pinch_refused_total", type_name(message_type), code)
        self.core.refusals.note(code, address)

    def look(self) -> None:
        """Ping who is due and end who did not answer."""
        now_ns = self.core.clock.boot_ns()
        for connection in list(self.connections):
            connection.look(now_ns)

    async def close(self) -> None:
        """Wait for what is on its way, before the store closes; the connections have ended by then."""
        self._keeper.cancel()
        await asyncio.gather(self._keeper, *self._tasks, return_exceptions=True)
        await self.gathering.drain()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(min(self.settings.ping_s, self.settings.pong_s) / _LOOKS_PER_PONG)
            self.look()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("pinch_task_failed", exc_info=failure)
