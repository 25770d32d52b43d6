"""The Pinch protocol of one relay: which address is connected, blocks between addresses, and what connections share.

An address has one connection. A second login wins only once the first has failed to answer a ping: an agent that
lost its network comes back at once, and a copy of an agent cannot take the messages of the one that runs. Blocks
are silent, in one direction, and take what is queued with them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakValueDictionary

import structlog

from posthouse.keys import NodeKey
from posthouse.model.errors import error
from posthouse.model.node import PINCH_MESH
from posthouse.relay.accept.authorize import RateBuckets
from posthouse.relay.engine import RelayEngine
from posthouse.relay.meshes.administration import MeshChanges
from posthouse.relay.meshes.participation import MAX_BLOCKS, MAX_ROWS
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.metrics import Meters
from posthouse.relay.pinch.connection import REPLACED, PinchConnection
from posthouse.relay.pinch.envelopes import type_name
from posthouse.relay.pinch.line import POLICY
from posthouse.relay.pinch.settings import PinchSettings
from posthouse.relay.pinch.submissions import Outcome, SubmissionQueue
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.delivery_rows import NO_DELIVERIES, ClosedDeliveries

BlockChange = tuple[Callable[[Unit], ClosedDeliveries], Callable[[ClosedDeliveries], None]]


class Blocks:
    """Who takes nothing from whom."""

    def __init__(self, changes: MeshChanges, mailboxes: ReaderSessions) -> None:
        self._changes = changes
        self._mailboxes = mailboxes

    async def block(self, blocker: str, blocked: str) -> None:
        """Take nothing more from an address, nor what is queued; doing so again changes nothing."""

        def prepare() -> BlockChange:
            rows = self._changes.meshes.find(PINCH_MESH).blocks
            if blocked in rows.get(blocker, ()):
                return _nothing
            if len(rows.get(blocker, ())) >= MAX_BLOCKS or sum(map(len, rows.values())) >= MAX_ROWS:
                raise error("mesh_row_limit", mesh=PINCH_MESH, count=len(rows.get(blocker, ())), what="blocks")

            def take_over(closed: ClosedDeliveries) -> None:
                rows[blocker].add(blocked)
                self._mailboxes.take_closed(closed)

            return lambda unit: _block(unit, blocker, blocked), take_over

        await self._changes.make(prepare)

    async def unblock(self, blocker: str, blocked: str) -> None:
        """Take from an address again what it sends from now on."""

        def prepare() -> BlockChange:
            rows = self._changes.meshes.find(PINCH_MESH).blocks
            if blocked not in rows.get(blocker, ()):
                return _nothing

            def take_over(_closed: ClosedDeliveries) -> None:
                rows[blocker].discard(blocked)
                if not rows[blocker]:
                    del rows[blocker]

            return lambda unit: _unblock(unit, blocker, blocked), take_over

        await self._changes.make(prepare)


def _block(unit: Unit, blocker: str, blocked: str) -> ClosedDeliveries:
    unit.save_block(PINCH_MESH, blocker, blocked)
    closed = unit.deliveries.block(PINCH_MESH, blocker, blocked)
    dropped = [message_id.decode() for message_id in unit.pinch.message_ids(closed.seqs)]
    body = {"blocked": True, "dropped": dropped}
    unit.append("pinch.blocked", mesh=PINCH_MESH, actor=blocker, ref=blocked, body=body)
    return closed


def _unblock(unit: Unit, blocker: str, blocked: str) -> ClosedDeliveries:
    unit.remove_block(PINCH_MESH, blocker, blocked)
    unit.append("pinch.blocked", mesh=PINCH_MESH, actor=blocker, ref=blocked, body={"blocked": False})
    return NO_DELIVERIES


def _none_closed(_unit: Unit) -> ClosedDeliveries:
    """Write nothing: it is so already."""
    return NO_DELIVERIES


_nothing: BlockChange = (_none_closed, lambda _closed: None)
log = structlog.get_logger(__name__)
_LOOKS_PER_PONG = 5  # so that a ping, or the end of a dead peer, is at most a fifth late


class Pinch:
    """Connections of Pinch agents."""

    def __init__(self, core: RelayEngine, key: NodeKey, meters: Meters, settings: PinchSettings) -> None:
        self.core = core
        self.settings = settings
        self.rates = RateBuckets(settings.rate)
        self.gathering = SubmissionQueue(core.mailboxes)
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
