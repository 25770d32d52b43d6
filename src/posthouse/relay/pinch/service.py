"""The shared state of a relay's Pinch connections: submissions, rate limits, counters, and blocks between addresses.

A block works in one direction, drops messages that are queued from the blocked address, and is not reported to that
address. Tasks and submissions belong to the relay: they finish even if the connection that started them is gone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from posthouse.keys import NodeKey
from posthouse.model.errors import error
from posthouse.model.node import PINCH_MESH
from posthouse.relay.accept.rates import RateBuckets
from posthouse.relay.engine import RelayEngine
from posthouse.relay.meshes.administration import MeshChanges
from posthouse.relay.meshes.participation import MAX_BLOCKS, MAX_ROWS
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.metrics import Meters
from posthouse.relay.pinch.envelopes import type_name
from posthouse.relay.pinch.pinch_settings import PinchSettings
from posthouse.relay.pinch.submissions import Outcome, PinchSubmissions
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.delivery_rows import NO_DELIVERIES, ClosedDeliveries

BlockChange = tuple[Callable[[Unit], ClosedDeliveries], Callable[[ClosedDeliveries], None]]


class Blocks:
    """Blocks between Pinch addresses."""

    def __init__(self, changes: MeshChanges, sessions: ReaderSessions) -> None:
        self._changes = changes
        self._sessions = sessions

    async def block(self, blocker: str, blocked: str) -> None:
        """Block an address and drop its queued envelopes; blocking it again changes nothing."""

        def prepare() -> BlockChange:
            rows = self._changes.meshes.find(PINCH_MESH).blocks
            if blocked in rows.get(blocker, ()):
                return _nothing
            if len(rows.get(blocker, ())) >= MAX_BLOCKS or sum(map(len, rows.values())) >= MAX_ROWS:
                raise error("mesh_row_limit", mesh=PINCH_MESH, count=len(rows.get(blocker, ())), what="blocks")

            def apply(closed: ClosedDeliveries) -> None:
                rows[blocker].add(blocked)
                self._sessions.apply_closed(closed)

            return lambda unit: _block(unit, blocker, blocked), apply

        await self._changes.make(prepare)

    async def unblock(self, blocker: str, blocked: str) -> None:
        """Accept envelopes from an address again, from now on."""

        def prepare() -> BlockChange:
            rows = self._changes.meshes.find(PINCH_MESH).blocks
            if blocked not in rows.get(blocker, ()):
                return _nothing

            def apply(_closed: ClosedDeliveries) -> None:
                rows[blocker].discard(blocked)
                if not rows[blocker]:
                    del rows[blocker]

            return lambda unit: _unblock(unit, blocker, blocked), apply

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
    """Write nothing: the change was made before."""
    return NO_DELIVERIES


_nothing: BlockChange = (_none_closed, lambda _closed: None)
log = structlog.get_logger(__name__)


class Pinch:
    """The state that all Pinch connections of a relay share; it does not know the connections."""

    def __init__(self, engine: RelayEngine, key: NodeKey, meters: Meters, settings: PinchSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.meters = meters
        self.rates = RateBuckets(settings.rate, share=engine.rate_share)
        self.submissions = PinchSubmissions(engine.sessions)
        self.blocks = Blocks(engine.changes, engine.sessions)
        self.is_stopping = False
        self._key = key
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that may outlive the connection that started it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def claim_code(self, public_key: bytes) -> str:
        """Return the claim code of a key at this relay: eight digits, the same each time."""
        proof = self._key.sign(b"pinch-claim-v1\0" + public_key)
        return hashlib.sha256(proof).hexdigest()[:8]

    def note_outcome(self, message_type: int, outcome: Outcome) -> None:
        """Count the outcome of an envelope."""
        self.meters.count("posthouse_relay_pinch_envelopes_total", type_name(message_type), outcome.value)

    def note_refused(self, address: str, message_type: int, code: str) -> None:
        """Count a refusal, in the metrics and for the journal."""
        self.meters.count("posthouse_relay_pinch_refused_total", type_name(message_type), code)
        self.engine.refusals.note(code, address)

    async def close(self) -> None:
        """Finish running tasks and commit pending submissions; call it after the connections and before the store."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.submissions.drain()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("pinch_task_failed", exc_info=failure)
