"""The bridge between the mesh and the host's bus: what comes is published, what is published to `out` is sent.

The daemon registers mesh.<mesh>.out.> and serves it: each message there goes to the outbox under an id made of the
envelope's, so handling one twice sends it once. What the outbox refuses becomes a dead letter of the bus.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from posthouse.bus.bus import Bus
from posthouse.daemon.bridge.arrivals import Arrivals
from posthouse.daemon.bridge.payloads import departure_request
from posthouse.daemon.bridge.subjects import BridgeSubjects
from posthouse.daemon.inbox import Inbox
from posthouse.daemon.send import Sending
from posthouse.model.clock import Clock
from posthouse.model.envelope import Envelope
from posthouse.model.errors import Transient, error
from posthouse.model.mesh_budget import to_mesh_budget

log = structlog.get_logger(__name__)
_TRIES = 10
_AGAIN_S = 1.0  # within the time of a handler


class Bridge:
    """Carries mail between inbox, bus and outbox."""

    def __init__(self, bus_dir: Path, mesh: str, inbox: Inbox, sending: Sending, clock: Clock) -> None:
        self._bus = Bus(bus_dir, clock=clock)
        self._subjects = BridgeSubjects(mesh)
        self._inbox = inbox
        self._sending = sending
        self._arrivals = Arrivals(self._bus, self._subjects, inbox, clock)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the bus and begin with what waits on either side."""
        await self._bus.open()
        try:
            await self._bus.register_endpoint(self._subjects.outgoing, owner=self._subjects.owner)
            await self._bus.subscribe(self._subjects.outgoing, self._depart)
        except BaseException:
            await self._bus.close()
            raise
        self._inbox.on_new.append(self._arrivals.wake)
        self._task = asyncio.create_task(self._arrivals.run())

    async def close(self) -> None:
        """Stop carrying; what waits is carried after the next start."""
        if self._task is not None:
            self._inbox.on_new.remove(self._arrivals.wake)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._bus.close()

    async def _depart(self, envelope: Envelope) -> None:
        request = departure_request(envelope, self._subjects.destination(envelope.subject))
        budget = to_mesh_budget(envelope.budget)
        for _ in range(_TRIES):
            try:
                status, body = await self._sending.send(request, budget=budget)
                break
            except Transient as failure:
                log.warning("bridge_departure_waits", id=envelope.id, code=failure.code)
                await asyncio.sleep(_AGAIN_S)
        else:
            raise error("store_busy", items=0, bytes=0)
        if status >= 400:
            conflict = body.get("conflict")
            raise error("idempotency_key_reused", client_message_id=request.client_message_id, conflict=conflict)
