"""One relay of several on a store: its beats, the leader's term, and the connections to the others.

Twice a second the relay raises its counter in the store and reads those of the others. If the leader is lost, every
relay tries to begin the next term; the store lets one succeed. The leader decides about locks and fenced events, and
runs the sweepers. Every write that it makes as the leader checks its term in the same transaction, so a leader that was
replaced while it was stopped or cut off can no longer write.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from posthouse.model.api import ClusterRelay, ClusterState
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.relay.accept.mesh_registry import Meshes
from posthouse.relay.accept.rates import RateShare
from posthouse.relay.accept.submission import Answered, Submission, Submitter
from posthouse.relay.cluster.cluster_locks import ClusterLocks
from posthouse.relay.cluster.membership import BEAT_S, Membership
from posthouse.relay.cluster.peer_frames import unpack_answer, unpack_error
from posthouse.relay.cluster.peer_links import PeerLinks
from posthouse.relay.locks.decide import start_run
from posthouse.relay.locks.service import Locks
from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.store.high_water import HighWater
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.store.shared_store import LeaderRow, SharedStore
from posthouse.relay.wire.accept_results import Answer, Committed, Declined

log = structlog.get_logger(__name__)
R = TypeVar("R")
_TAKE_OVER_S = 1.0  # a relay that takes longer to end the old session is lost or slow; its writes are dropped
_event = msgspec.json.Decoder(Event).decode


class TermStore:
    """The store as locks see it: every write belongs to the term of one leader."""

    def __init__(self, store: RelayStore, shared: SharedStore, term: int) -> None:
        self._store = store
        self._shared = shared
        self._term = term
        self.epoch = store.epoch
        self.locks = store.locks

    def submit(self, work: Callable[[Unit], R], *, size: int = 0) -> asyncio.Future[R]:
        """Write as RelayStore.submit does, while the term lasts."""
        return self._store.submit(lambda unit: self._in_term(unit, work), size=size)

    def submit_with_callback(
        self,
        work: Callable[[Unit], Any],
        on_done: Callable[[Any, BaseException | None], None],
        *,
        size: int = 0,
        is_short: bool = False,
    ) -> None:
        """Write as RelayStore.submit_with_callback does, while the term lasts."""
        self._store.submit_with_callback(lambda unit: self._in_term(unit, work), on_done, size=size, is_short=is_short)

    def _in_term(self, unit: Unit, work: Callable[[Unit], R]) -> R:
        self._shared.check_term(self._term)
        return work(unit)


class Cluster:
    """This relay among the others; made by the engine, which connects its parts."""

    def __init__(
        self,
        store: RelayStore,
        shared: SharedStore,
        meshes: Meshes,
        sessions: ReaderSessions,
        clock: Clock,
        *,
        advertise: str,
        token: Callable[[], str],
        wait_queue_max: int,
        rate_share: RateShare,
    ) -> None:
        self._store = store
        self._shared = shared
        self._meshes = meshes
        self._sessions = sessions
        self._clock = clock
        self._advertise = advertise
        self._wait_queue_max = wait_queue_max
        self._rate_share = rate_share
        #: names this run of the relay
        self.relay_id = secrets.token_hex(8)
        self.membership = Membership(self.relay_id)
        self.locks = ClusterLocks(meshes)
        #: the term in which this relay leads; None: it does not
        self.term: int | None = None
        self.links = PeerLinks(token, lambda: ("PRESENCE", sessions.presence.own_online()))
        self.links.on_change = self._follow_leader
        #: submits events of peers; set by the engine
        self.open_submitter: Callable[[Callable[[Sequence[Answered]], None]], Submitter]
        #: passes events to live subscriptions; set by the engine
        self.announce: Callable[[Sequence[Committed]], None]
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Announce this relay, and begin the first term if there is none."""
        await self._beat()
        self._task = asyncio.create_task(self._serve(), name="cluster")

    async def close(self) -> None:
        """Leave: another relay may lead at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.locks.close()
        await self.links.close()
        with contextlib.suppress(PosthouseError):
            await asyncio.to_thread(self._shared.leave, self.relay_id)

    @property
    def is_leader(self) -> bool:
        """Whether this relay leads, to its knowledge."""
        return self.term is not None

    @property
    def alive(self) -> int:
        """How many relays of the store are alive, this one included."""
        return 1 + len(self.membership.peers(self._clock.boot_ns()))

    def describe(self) -> ClusterState:
        """Return what this relay knows about the relays of its store."""
        now_ns, view = self._clock.boot_ns(), self.membership.view
        leader = None if view.leader is None else view.leader.relay_id or None
        alive = {self.relay_id, *self.membership.peers(now_ns)}
        relays = [
            ClusterRelay(
                row.relay_id,
                row.url,
                row.beat,
                self.membership.silence_s(row.relay_id, now_ns),
                is_self=row.relay_id == self.relay_id,
                is_leader=row.relay_id == leader,
                is_alive=row.relay_id in alive,
            )
            for row in view.relays
        ]
        return ClusterState(self.relay_id, leader, None if view.leader is None else view.leader.term, relays)

    @property
    def leading_locks(self) -> Locks | None:
        """The locks, if this relay leads."""
        return self.locks.local

    def check_term(self) -> None:
        """Raise leader_lost inside a unit of work unless this relay leads; the term then lasts until the commit."""
        if self.term is None:
            raise error("leader_lost")
        self._shared.check_term(self.term)

    # what this relay sends to the others

    def pass_on(self, committed: Sequence[Committed]) -> None:
        """Send ephemeral events that were accepted here to the live subscriptions of the others."""
        for each in committed:
            if each.seq is None:
                self.links.broadcast("EVENT", msgspec.Raw(each.raw), each.recipient)

    def tell_online(self, mesh: str, node: str, agents: tuple[str, ...] | None) -> None:
        """Announce to the others that a node is online here with these agents, or no longer online."""
        self.links.broadcast("ONLINE", mesh, node, agents)

    async def take_over(self, session: ReaderSession) -> int:
        """End the sessions that a node has at other relays; return the number of its new one."""
        answers: list[asyncio.Future[None]] = []
        for link in self.links.open_links():
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            answers.append(answer)
            link.ask(_settles(answer), "TAKE_OVER", *session.name, session.instance)
        if answers:
            await asyncio.wait(answers, timeout=_TAKE_OVER_S)
        return await self._shared.next_session(*session.name)

    def forward(self, submission: Submission, on_answers: Callable[[Sequence[Answer]], None]) -> None:
        """Let the leader decide about events; if it is unreachable or lost, the sender has to send them again."""
        leader = self._leader_row()
        link = None if leader is None else self.links.find(leader.relay_id)
        if link is None:
            on_answers(_all_declined(submission, error("leader_unknown")))
            return

        def on_reply(reply: list[Any] | None) -> None:
            if reply is None:
                on_answers(_all_declined(submission, error("leader_lost")))
                return
            refusal, answers = reply
            if refusal is not None:
                on_answers(_all_declined(submission, unpack_error(refusal)))
            else:
                on_answers([unpack_answer(*answer) for answer in answers])

        link.ask(on_reply, "SUBMIT", [msgspec.Raw(job.raw) for job in submission.jobs])

    # what the others send to this relay

    def take_ephemeral(self, raw: bytes, recipient: str | None) -> None:
        """Pass an ephemeral event to live subscriptions."""
        event = _event(raw)
        self.announce([Committed(None, event, raw, event.mesh, recipient)])

    def take_presence(self, peer: object, online: dict[str, dict[str, list[str]]]) -> None:
        """Replace the nodes that are online at a peer."""
        self._sessions.presence.replace_elsewhere(peer, online)

    def take_online(self, peer: object, mesh: str, node: str, agents: list[str] | None) -> None:
        """Change the agents of a node that is online at a peer."""
        self._sessions.presence.note_elsewhere(peer, mesh, node, agents)

    def end_sessions(self, mesh: str, node: str, instance: str | None, on_done: Callable[[], None]) -> None:
        """End the sessions of a node; call `on_done` once their deferred writes are committed."""
        self._sessions.end_replaced(mesh, node, instance)
        settled = asyncio.ensure_future(self._sessions.settled((mesh, node)))
        settled.add_done_callback(lambda _settled: on_done())

    def submit(self, events: Sequence[bytes], on_answers: Callable[[Sequence[Answered]], None]) -> None:
        """Submit events of a node of a peer."""
        if self.term is None:
            raise error("leader_lost")
        self.open_submitter(on_answers).submit(events)

    # beats and terms

    async def _serve(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                await self._beat()
            except PosthouseError as failure:
                log.warning("beat_failed", reason=str(failure))
            except Exception:
                log.exception("beat_failed")

    async def _beat(self) -> None:
        boot_ns = self._clock.boot_ns()
        view = await asyncio.to_thread(self._shared.beat, self.relay_id, self._advertise, self.term, boot_ns)
        now_ns = self._clock.boot_ns()
        self.membership.note(view, now_ns)
        self._rate_share.relays = self.alive
        if self.term is not None and not self.membership.leads(self.term):
            log.warning("leadership_lost", term=self.term)
            self.term = None
        if self.term is None and self.membership.is_leader_lost(now_ns):
            await self._try_to_lead(view.leader)
        if self.term is not None and (lost := self.membership.forgotten(now_ns)):
            await asyncio.to_thread(self._shared.forget_relays, lost)
        await self.links.keep(self.membership.peers(now_ns))
        self._follow_leader()

    async def _try_to_lead(self, former: LeaderRow | None) -> None:
        clock = self._clock
        term = 0 if former is None else former.term
        won = await asyncio.to_thread(self._shared.begin_term, term, self.relay_id, clock.boot_id, clock.boot_ns())
        if not won:
            return
        store = TermStore(self._store, self._shared, term + 1)
        mark = None if former is None else HighWater(store.epoch, 0, 0, former.boot_id, former.boot_ns)
        run_id = await start_run(store, clock, mark, has_new_key=False)
        log.info("leadership_taken", term=term + 1, former=None if former is None else former.relay_id)
        self.term = term + 1
        self.locks.lead(Locks(store, self._meshes, clock, run_id, max_per_lock=self._wait_queue_max))

    def _leader_row(self) -> LeaderRow | None:
        leader = self.membership.view.leader
        return None if leader is None or leader.relay_id == self.relay_id else leader

    def _follow_leader(self) -> None:
        if self.term is None:
            leader = self._leader_row()
            self.locks.follow(None if leader is None else self.links.find(leader.relay_id))


def _all_declined(submission: Submission, refusal: PosthouseError) -> list[Answer]:
    return [Declined(job.event_id, refusal) for job in submission.jobs]


def _settles(answer: asyncio.Future[None]) -> Callable[[list[Any] | None], None]:
    def on_reply(_reply: list[Any] | None) -> None:
        if not answer.done():
            answer.set_result(None)

    return on_reply
