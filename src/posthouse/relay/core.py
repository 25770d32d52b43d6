"""The core of a relay: accept, store, read, meshes, behind one object that knows nothing of HTTP or WebSockets.

The edge hands in bytes, and node ids that it has authenticated, and gets values back. What others see comes from
`listen`, which follows committed rows. Everything belongs to the event loop that `start` ran on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posthouse.files import private_dir
from posthouse.journal.store import exit_process
from posthouse.model.bucket import Rate
from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal
from posthouse.model.event import Event
from posthouse.model.ids import Minter
from posthouse.model.limits import EPHEMERAL_BURST, EPHEMERAL_RATE_PER_S, EVENT_BURST, EVENT_RATE_PER_S
from posthouse.relay.accept.buckets import Buckets
from posthouse.relay.accept.check import check_proof
from posthouse.relay.accept.judge import Judge
from posthouse.relay.accept.lane import Lane, OnAnswers
from posthouse.relay.accept.path import AcceptPath
from posthouse.relay.answers import Answer
from posthouse.relay.committed import Committed, Listener
from posthouse.relay.deliver.attend import Attendance
from posthouse.relay.deliver.intake import Intake
from posthouse.relay.deliver.mailboxes import Mailboxes
from posthouse.relay.deliver.queues import Queues
from posthouse.relay.deliver.settings import DEFAULT_SETTINGS, DeliverySettings
from posthouse.relay.deliver.states import States
from posthouse.relay.locks.run import start_run
from posthouse.relay.locks.service import Locks
from posthouse.relay.meshes.administration import Administration
from posthouse.relay.meshes.bootstrap import prepare_main, prepare_pinch
from posthouse.relay.meshes.change import Changes
from posthouse.relay.meshes.invites import Invites
from posthouse.relay.meshes.participation import Participation
from posthouse.relay.meshes.registry import Meshes
from posthouse.relay.meshes.rights import Right
from posthouse.relay.ops.housekeeping import Housekeeping
from posthouse.relay.ops.prune import ArchivedRange, Pruning
from posthouse.relay.ops.refusals import Refusals
from posthouse.relay.reads import Reads
from posthouse.relay.store.interface import Pruned, RelayStore
from posthouse.relay.store.sqlite import FILE_NAME, SqliteStore


@dataclass(frozen=True)
class CoreSettings:
    """What a core needs to know; everything else has its default."""

    data_dir: Path
    #: node id of the relay's own key: invites and authentication are bound to it
    relay: str
    #: whether main may be open to any key that authenticates; on loopback it may
    is_main_open: bool = True
    #: nodes that administer main, and with it the relay
    admins: tuple[str, ...] = ()
    event_rate: Rate = field(default_factory=lambda: Rate(EVENT_RATE_PER_S, EVENT_BURST))
    ephemeral_rate: Rate = field(default_factory=lambda: Rate(EPHEMERAL_RATE_PER_S, EPHEMERAL_BURST))
    deliveries: DeliverySettings = DEFAULT_SETTINGS
    #: whether the mesh of Pinch addresses is to be there
    has_pinch: bool = False
    #: threads that check signatures
    checkers: int = field(default_factory=lambda: os.cpu_count() or 1)


class Core(Reads):
    """A running relay without its sockets; made by `start`."""

    def __init__(self, settings: CoreSettings, clock: Clock, store: RelayStore, meshes: Meshes, lock_run: str) -> None:
        super().__init__(store, meshes)
        self.settings = settings
        self.clock = clock
        self.changes = Changes(store, meshes)
        self.administration = Administration(self.changes)
        self.participation = Participation(self.changes)
        self.invites = Invites(self.changes, settings.relay, Minter(clock))
        self.locks = Locks(store, meshes, clock, lock_run)
        self.mailboxes = Mailboxes(store, meshes, clock, settings.deliveries)
        self.participation.on_blocked = self.mailboxes.take_closed
        self.queues = Queues(self.mailboxes, meshes)
        self.states = States(store, meshes, clock, settings.deliveries)
        self.refusals = Refusals(clock)
        judge = Judge(meshes, clock, Buckets(settings.event_rate), Buckets(settings.ephemeral_rate))
        self._path = AcceptPath(
            store, judge, self.refusals, settings.checkers, Intake(settings.deliveries), self.mailboxes.take_mail
        )
        self.attendance = Attendance(self.mailboxes)
        self._pruning = Pruning(store)
        self._housekeeping = Housekeeping(store, self.refusals)

    @classmethod
    async def start(
        cls,
        settings: CoreSettings,
        clock: Clock,
        *,
        on_fatal: Callable[[Fatal], None] = exit_process,
        vfs: str | None = None,
    ) -> Core:
        """Open the store, make main and its admins, and start the threads."""
        private_dir(settings.data_dir)
        path = settings.data_dir / FILE_NAME
        store = await asyncio.to_thread(SqliteStore, path, clock, on_fatal=on_fatal, vfs=vfs)
        try:
            rows = await prepare_main(store, settings.relay, is_open=settings.is_main_open, admins=settings.admins)
            if settings.has_pinch:
                rows = await prepare_pinch(store, settings.relay, settings.admins)
            lock_run = await start_run(store, clock)
        except BaseException:
            await asyncio.to_thread(store.close)
            raise
        return cls(settings, clock, store, Meshes(rows), lock_run)

    async def close(self) -> None:
        """Answer what is on the way, write what is owed, and release everything."""
        self.locks.close()
        await self._path.close()
        await self.attendance.close()
        await self._housekeeping.close()
        await asyncio.to_thread(self.store.close)

    def open_lane(self, on_answers: OnAnswers) -> Lane:
        """Return the way in of one connection; it keeps the order of what is submitted."""
        return self._path.open_lane(on_answers)

    async def accept(self, event: bytes) -> Answer:
        """Accept one event given as JSON."""
        (answer,) = await self.accept_many([event])
        return answer

    async def accept_many(self, events: Sequence[bytes]) -> list[Answer]:
        """Accept a list of events given as JSON; the answers are in its order."""
        answers: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        if not events:
            return []

        def settle(given: Sequence[Answer]) -> None:
            if not answers.done():  # the caller may have gone
                answers.set_result(list(given))

        self._path.open_lane(settle).submit(events)
        return await answers

    async def prune(self, node: str, archived: ArchivedRange) -> tuple[Pruned, int]:
        """Delete what the archive holds; returns what went and the oldest seq left. Admins of the relay only."""
        self.demand_admin(node)
        return await self._pruning.prune(archived)

    async def verify(self, event: bytes) -> Event:
        """Return an event that is not published, such as a proof, with structure, id and signature checked."""
        return await asyncio.to_thread(check_proof, event)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` on the loop with what is committed from now on, in commit order; return what ends it."""
        return self._path.listen(listener)

    def may_read(self, committed: Committed, node: str) -> bool:
        """Tell whether a node may read an event: it reads the mesh, and a direct message is its own."""
        return committed.may_read(node) and Right.READ in self.meshes.rights(node, committed.mesh)

    @property
    def state(self) -> str:
        """`open`, `full` (read-only until there is room), `failed` or `closed`."""
        return self.store.state

    def info(self) -> dict[str, Any]:
        """Return what anybody may know of the core."""
        return {"epoch": self.store.epoch, "relay": self.settings.relay}

    def statistics(self) -> dict[str, Any]:
        """Return the counters that show how the core is doing."""
        return {"accept": self._path.statistics(), "store": self.store.statistics(), "meshes": len(self.meshes)}
