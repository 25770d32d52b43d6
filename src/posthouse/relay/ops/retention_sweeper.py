"""The retention sweeper: applies the limits of meshes to their stored events, in small steps between other work.

One task per relay; if several relays share a store, the leader does the work. Each round walks over the events of every
mesh with a limit of age or versions, removes the content of deleted meshes, and forgets the ids of removed events that
are too old to be accepted again. One step is one short transaction, so other writes never wait for a round. A store
without room is tried again in the next round. A clock that is years ahead would make every event too old, so nothing is
removed by its age within an hour after a start or a step of the clock; versions and deleted meshes do not depend on it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from posthouse.model.clock import Clock, SteadyTime
from posthouse.model.errors import PosthouseError
from posthouse.model.mesh_limits import NO_LIMITS, MeshLimits, has_reached
from posthouse.relay.accept.mesh_registry import Meshes
from posthouse.relay.metrics import Meters, MetricsObserver, NullObserver
from posthouse.relay.store.event_rows import SweptEvents, Usage
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.store.shared_store import Charge
from posthouse.relay.wire.delivery_rows import ClosedDeliveries

log = structlog.get_logger(__name__)
R = TypeVar("R")
SWEEP_S = 300.0
STEP_EVENTS = 200  # events per transaction: other writes wait for some milliseconds


class RetentionSweeper:
    """Sweeps events until it is closed."""

    def __init__(
        self,
        store: RelayStore,
        meshes: Meshes,
        clock: Clock,
        known_ids_ns: int,
        on_closed: Callable[[ClosedDeliveries], None],
        charge: Charge,
        interval_s: float = SWEEP_S,
    ) -> None:
        self._store = store
        self._meshes = meshes
        self._clock = clock
        self._known_ids_ns = known_ids_ns
        self._on_closed = on_closed
        self._charge = charge
        self._interval_s = interval_s
        self._time = SteadyTime(clock)
        #: boot time of the end of the last round
        self.finished_ns = clock.boot_ns()
        self._observer: MetricsObserver = NullObserver()
        self._usage: dict[str, Usage] = {}
        self._wake = asyncio.Event()
        self._round = asyncio.Lock()
        self._task = asyncio.create_task(self._serve(), name="sweep retention")

    async def close(self) -> None:
        """End the task."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def wake(self) -> None:
        """Begin the next round now, because a limit has changed or a mesh was deleted."""
        self._wake.set()

    async def count(self) -> None:
        """Update the usage of meshes; it stays as it is while the store cannot be read."""
        with contextlib.suppress(PosthouseError):
            self._usage = await self._store.usage()

    def observe_with(self, meters: Meters) -> None:
        """Publish metrics of stored and swept events."""
        self._observer = meters
        meters.watch("posthouse_relay_stored_events", lambda: sum([each.events for each in self._usage.values()]))
        meters.watch("posthouse_relay_stored_event_bytes", lambda: sum([each.bytes for each in self._usage.values()]))
        meters.watch("posthouse_relay_meshes_full", self._count_full)
        meters.watch("posthouse_relay_clock_steady", self._time.is_steady)

    def _count_full(self) -> int:
        found = [(self._meshes.limited.get(mesh, NO_LIMITS), usage) for mesh, usage in self._usage.items()]
        return sum([has_reached(limits, *usage) for limits, usage in found])

    async def sweep(self) -> int:
        """Apply all limits once; return how many events lost their content."""
        async with self._round:
            is_steady = self._time.is_steady()
            removed = await self._erase_meshes()
            for mesh in self._meshes.all():
                limits = mesh.limits if is_steady else msgspec.structs.replace(mesh.limits, max_age=())
                if limits.is_swept:
                    removed += await self._sweep_mesh(mesh.row.mesh, limits)
            if is_steady:
                await self._forget()
            self.finished_ns = self._clock.boot_ns()
        return removed

    async def _erase_meshes(self) -> int:
        erased = 0
        while (step := await self._submit(lambda unit: unit.erase_mesh_step(STEP_EVENTS))) is not None:
            for closed in step.closed:
                self._on_closed(closed)
            erased += step.erased
        return erased

    async def _sweep_mesh(self, mesh: str, limits: MeshLimits) -> int:
        removed, after_seq = 0, 0
        while True:
            now_ns = self._clock.wall_ns()
            step = await self._submit(
                partial(_sweep_step, mesh=mesh, limits=limits, now_ns=now_ns, after_seq=after_seq)
            )
            removed += step.removed
            self._observer.count("posthouse_relay_events_swept_total", by=step.removed)
            if step.through_seq is None:
                break
            after_seq = step.through_seq
        if removed:
            log.info("events_swept", mesh=mesh, events=removed)
        return removed

    async def _forget(self) -> None:
        before_ns, after_seq = self._clock.wall_ns() - self._known_ids_ns, 0
        while True:
            through_seq = await self._submit(partial(_forget_step, after_seq=after_seq, before_ns=before_ns))
            if through_seq is None:
                return
            after_seq = through_seq

    def _submit(self, work: Callable[[Unit], R]) -> asyncio.Future[R]:
        self._observer.count("posthouse_relay_sweep_steps_total", "retention")
        return self._store.submit(self._charge.fenced(work))

    async def _serve(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._interval_s)
            self._wake.clear()
            try:
                if self._charge.is_here:
                    await self.sweep()
            except PosthouseError as failure:
                log.warning("retention_not_applied", reason=str(failure))


def _sweep_step(unit: Unit, *, mesh: str, limits: MeshLimits, now_ns: int, after_seq: int) -> SweptEvents:
    return unit.sweep_mesh(mesh, limits, now_ns, after_seq, STEP_EVENTS)


def _forget_step(unit: Unit, *, after_seq: int, before_ns: int) -> int | None:
    return unit.forget_ids(after_seq, before_ns, STEP_EVENTS)
