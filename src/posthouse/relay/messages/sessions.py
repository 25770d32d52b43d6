"""All open reader sessions of a relay: apply the effects of each commit to them, and defer their writes.

Called on the event loop with the effects of each transaction, in commit order. A node has one session in a mesh, even
if several relays share the store, unless the policy allows more: a new session waits until the former one has ended and
its deferred writes are committed.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from posthouse.journal.cursor import Cursor
from posthouse.model.clock import Clock
from posthouse.model.event import Event
from posthouse.model.limits import SECOND_NS
from posthouse.relay.accept.group_commit import DeferredWrites, GroupCommitter, Name
from posthouse.relay.accept.mesh_registry import Meshes, Right
from posthouse.relay.accept.submission import CommitEffects, Confirmed
from posthouse.relay.messages.presence import MAX_PROFILES, PresenceTracker, roster, shown_profiles
from posthouse.relay.messages.reader_session import DeliverySpans, Offer, ReaderSession
from posthouse.relay.messages.settings import ConnectionPolicy, DeliverySettings
from posthouse.relay.metrics import MetricsObserver, NullObserver
from posthouse.relay.store.delivery_protocol import DeliveryReads
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.wire.delivery_rows import ClosedDeliveries, DeliveryPage
from posthouse.relay.wire.frames import command_text
from posthouse.tracing import Tracer

log = structlog.get_logger(__name__)
R = TypeVar("R")
_MAX_GAPS = 500  # shown at once; the rest follows when these are filled
_FIRST_ATTEMPT = {"was_stored": False, "attempt": 1}

REPLACED = "replaced_by_newer_connection"
CONFIRM_TIMEOUT = "confirm_timeout"
CODE_REPLACED = 4003
CODE_CONFIRM_TIMEOUT = 4008
CODE_SAME_INSTANCE = 1000
CODE_POLICY = 1008


class SessionEnd(enum.Enum):
    """Why a session closed; it decides which deliveries count an attempt."""

    #: no progress: every delivery in flight
    TIMEOUT = "timeout"
    #: any other end of a connection: the oldest delivery in flight
    LOST = "lost"
    #: a newer connection of the same node, or the relay stops: none
    HARMLESS = "harmless"


class ReaderSessions:
    """Open sessions by mesh and node."""

    def __init__(
        self,
        store: RelayStore,
        committer: GroupCommitter,
        meshes: Meshes,
        clock: Clock,
        settings: DeliverySettings,
    ) -> None:
        self.store = store
        self.committer = committer
        self.clock = clock
        self.settings = settings
        self.observer: MetricsObserver = NullObserver()
        #: deliveries sent, by where they came from
        self.sent = {"tail": 0, "queue": 0}
        #: state -> deliveries that ended in it
        self.closed: dict[str, int] = {}
        #: None: deliveries are not traced
        self.tracer: Tracer | None = None
        self._meshes = meshes
        self._open: dict[Name, list[ReaderSession]] = {}
        self._deferred = DeferredWrites(committer, store.shared)
        self.presence = PresenceTracker()
        #: ends a node's sessions at other relays and returns the number of its new one; None if there are no other
        #: relays
        self.take_over: Callable[[ReaderSession], Awaitable[int]] | None = None
        meshes.watch_rights(self.end_unreadable)

    @property
    def reads(self) -> DeliveryReads:
        return self.store.deliveries

    def open(self, session: ReaderSession) -> None:
        """Register a session; under prefer_newest the older sessions of its node are closed."""
        others = self._open.setdefault(session.name, [])
        is_first = not others
        others.append(session)
        self.presence.add(session, is_first=is_first)
        if self.tracer is not None and session.has_traces:
            session.spans = DeliverySpans(self.tracer, *session.name)
        if self.settings.policy is ConnectionPolicy.PREFER_NEWEST:
            for older in others[:-1]:
                self._replace(older, session.instance)

    async def prepare(self, session: ReaderSession) -> None:
        """Wait until the deferred writes of the sessions that a new one replaces are committed, here and elsewhere."""
        await self.settled(session.name)
        if self.take_over is not None and self.settings.policy is ConnectionPolicy.PREFER_NEWEST:
            self._deferred.numbers[session.name] = await self.take_over(session)

    def end_replaced(self, mesh: str, node: str, instance: str | None) -> None:
        """End the sessions of a node, because it has a newer one at another relay."""
        for session in list(self._open.get((mesh, node), ())):
            self._replace(session, instance)

    def close(self, session: ReaderSession, end: SessionEnd) -> None:
        """Remove a session whose connection has ended, and count the attempt."""
        if session.is_closed:
            return
        session.close()
        others = self._open[session.name]
        others.remove(session)
        if not others:
            del self._open[session.name]
        self.presence.remove(session, is_last=not others)
        self._count_attempts(session, end)
        if not others:
            self._deferred.numbers.pop(session.name, None)

    def apply_effects(self, effects: CommitEffects) -> None:
        """Apply the effects of one transaction to the sessions concerned."""
        offers: dict[Name, list[Offer]] = {}
        for queued in effects.queued:
            present = [(queued.mesh, node) for node in queued.readers if (queued.mesh, node) in self._open]
            if present:
                text = command_text("DELIVER", queued.seq, msgspec.Raw(queued.raw), _FIRST_ATTEMPT)
                offer = Offer(queued.seq, queued.id, text)
                for name in present:
                    offers.setdefault(name, []).append(offer)
        for name, given in offers.items():
            self.offer(name, given)
        for closed in effects.closed:
            self.apply_closed(closed)
        if effects.confirmed:
            self._apply_confirmed(effects.confirmed)
        for name in effects.gaps:
            self.note_gap(*name)
        for profile in effects.profiles:
            self.announce_profile(profile)

    def offer(self, name: Name, offers: Sequence[Offer]) -> None:
        """Give messages that were just committed to the sessions of a reader, in order."""
        for session in self._open.get(name, ()):
            if self.may_read(session):
                session.offer(offers)

    def apply_closed(self, closed: ClosedDeliveries) -> None:
        """Take deliveries that have ended out of flight in the sessions of their reader."""
        if closed.state:
            self.closed[closed.state] = self.closed.get(closed.state, 0) + len(closed.seqs)
        for session in self._open.get((closed.mesh, closed.node), ()):
            session.settle(closed.seqs, closed.failure)

    def apply_reopened(self, mesh: str, node: str) -> None:
        """Let the sessions of a reader read again: its queue has new deliveries at the tail."""
        for session in self._open.get((mesh, node), ()):
            session.fall_behind()

    def has_any(self, mesh: str) -> bool:
        """Return True if a session is open in a mesh."""
        return bool(self.presence.sessions(mesh))

    def note_gap(self, mesh: str, node: str) -> None:
        """Let the sessions of a reader report that its full queue had no room for messages of topics."""
        for session in self._open.get((mesh, node), ()):
            session.has_gap = True

    def apply_confirmed_elsewhere(self, mesh: str, sender: str) -> None:
        """Let the sessions of a sender read confirmations that another relay has stored for it."""
        for session in self._open.get((mesh, sender), ()):
            session.confirmations.fall_behind()

    def check_in_flight(self, mesh: str, node: str) -> None:
        """Make the sessions of a reader check which of their deliveries another relay has closed."""
        for session in self._open.get((mesh, node), ()):
            session.check_in_flight()

    async def ended_elsewhere(self, session: ReaderSession) -> list[int]:
        """Return the deliveries in flight that are no longer open."""
        seqs = session.in_flight.seqs
        if self.store.shared is None or not seqs:
            return []
        still_open = await self.store.shared.open_deliveries(*session.name, seqs)
        return [seq for seq in seqs if seq not in still_open]

    def announce_profile(self, profile: Event) -> None:
        """Send a profile that has just replaced another to its mesh."""
        self.presence.announce_profile(profile)

    def may_read(self, session: ReaderSession) -> bool:
        """Return True if a session may continue; end the connection of a node that lost its right."""
        if session.is_closed:
            return False
        if not session.needs_mesh_right:
            return True
        refusal = self._meshes.authorization_error(session.node, session.mesh, Right.READ)
        if refusal is None:
            return True
        session.peer.end(CODE_POLICY, refusal.code)
        return False

    def end_unreadable(self, mesh: str) -> None:
        """End the sessions of nodes that may no longer read a mesh; the mesh sees them go offline."""
        for session in self.presence.sessions(mesh):
            if not self.may_read(session):
                self.close(session, SessionEnd.HARMLESS)

    def has_responder(self, mesh: str, recipient: str | None, asking: str) -> bool:
        """Return True if a node reads its messages now; for a topic (None), if any node but the asking one does."""
        online = self.presence.online(mesh)
        return any(node != asking for node in online) if recipient is None else recipient in online

    async def send_greeting(self, session: ReaderSession) -> bool:
        """Send ROSTER, and QUEUE_STATUS if messages wait; return True if some do.

        Both go in one frame, so that a client knows both when it has read its answer to RECEIVE. From then on the
        session gets PRESENCE.
        """
        mesh = self._meshes.find(session.mesh)
        nodes = [*mesh.members, *self.presence.online(session.mesh)][:MAX_PROFILES]
        found = await self.reads.profiles(session.mesh, list(dict.fromkeys(nodes)), self.clock.wall_ns())
        profiles = shown_profiles(found)
        count = await self.count_waiting(session)
        if not session.is_closed:
            entries = roster(mesh, self.presence.online(session.mesh), profiles)
            commands = [command_text("ROSTER", session.mesh, entries)]
            if count:
                commands.append(command_text("QUEUE_STATUS", count))
            session.peer.deliver(session.peer.separator.join(commands), len(commands))
            session.has_roster = True
        return count > 0

    def set_agents(self, session: ReaderSession, agents: Sequence[str]) -> None:
        """Note which agents of a node are online; the mesh gets it as PRESENCE."""
        session.agents = tuple(agents)
        self.presence.note_agents(session)

    async def count_waiting(self, session: ReaderSession) -> int:
        """Return how many messages wait for the reader of a session."""
        return await self.reads.waiting(session.mesh, session.node, self.opened_since_ns())

    async def send_gaps(self, session: ReaderSession) -> None:
        """Send GAP if a full queue had no room for messages of topics that the reader has not read since."""
        gaps = await self.reads.gaps(*session.name, _MAX_GAPS)
        if gaps and not session.is_closed:
            shown = [
                {
                    "topic": topic,
                    "cursor": str(Cursor(self.store.epoch, first - 1)),
                    "last_seq": last,
                    "messages": count,
                }
                for topic, first, last, count in gaps
            ]
            session.peer.deliver(command_text("GAP", session.mesh, shown), 1)

    def close_gap(self, session: ReaderSession, topic: str, through_seq: int) -> None:
        """Forget a gap that a reader has filled, in the background."""
        mesh, node = session.name
        self._deferred.defer(session.name, lambda unit: unit.deliveries.close_gap(mesh, node, topic, through_seq))

    async def read_page(self, session: ReaderSession, after: int, limit: int) -> DeliveryPage:
        """Return the next deliveries of a session."""
        if len(self._open.get(session.name, ())) > 1:
            await self.settled(session.name)  # this session must see deliveries that another one just sent as sent
        now_ns = self.clock.wall_ns()
        return await session.reads.page(*session.name, after, self.opened_since_ns(), now_ns, limit)

    def note_sent(self, session: ReaderSession, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None:
        """Mark deliveries as sent, in the background."""
        mesh, node = session.name
        self.sent["queue" if was_stored else "tail"] += len(seqs)
        self._deferred.defer(
            session.name,
            lambda unit: unit.deliveries.mark_sent(mesh, node, seqs, was_stored=was_stored, record_body=record_body),
        )

    def note_read(self, session: ReaderSession, seqs: Sequence[int]) -> None:
        """Close deliveries that need no confirm and were provably read, in the background."""
        mesh, node = session.name
        self.defer(session.name, lambda unit: unit.deliveries.note_read(mesh, node, seqs))

    def drop_confirmations(self, name: Name, through_seq: int) -> None:
        """Drop confirmations that their sender has read, in the background."""
        self._deferred.defer(name, lambda unit: unit.deliveries.drop_confirmations(*name, through_seq))

    def defer(
        self,
        name: Name,
        work: Callable[[Unit], ClosedDeliveries],
        on_done: Callable[[ClosedDeliveries], None] | None = None,
    ) -> None:
        """Write in the background, then remove ended deliveries from those in flight and call `on_done`."""

        def done(closed: ClosedDeliveries) -> None:
            self.apply_closed(closed)
            if on_done is not None:
                on_done(closed)

        self._deferred.defer(name, work, done)

    def note_flushed(self, elapsed_ns: int) -> None:
        """Record the time from RECEIVE to the end of the backlog."""
        self.observer.observe("posthouse_relay_flush_seconds", elapsed_ns / SECOND_NS)

    def submit(self, work: Callable[[Unit], R]) -> asyncio.Future[R]:
        """Write after all deferred writes of sessions: a change of deliveries must see them as sent."""
        self.committer.flush_deferred()
        return self.store.submit(work)

    async def settled(self, name: Name) -> None:
        """Wait until the deferred writes of a node are committed."""
        await self._deferred.settled(name)

    def check_sessions(self) -> None:
        """End the sessions that are stuck, and retry refused writes; called at regular intervals."""
        timeout_ns = round(self.settings.confirm_timeout_s * SECOND_NS)
        for session in self._all():
            if session.is_stuck(timeout_ns):
                session.peer.end(CODE_CONFIRM_TIMEOUT, CONFIRM_TIMEOUT)
        self._deferred.retry()

    def statistics(self) -> dict[str, int]:
        """Return how many sessions are open, how many are behind, and how many deliveries are in flight."""
        sessions = self._all()
        in_flight = sum(len(each.in_flight) for each in sessions)
        return {"open": len(sessions), "behind": sum(each.is_behind for each in sessions), "in_flight": in_flight}

    async def drain(self) -> None:
        """Wait until every write is committed; before the store closes."""
        await self.committer.drain()

    async def idle(self) -> None:
        """Wait until every write is committed and every session has sent everything it can send now."""
        await self.committer.drain()
        for session in self._all():
            await session.idle()

    def _all(self) -> list[ReaderSession]:
        return [session for sessions in self._open.values() for session in sessions]

    def _apply_confirmed(self, confirmed: Sequence[Confirmed]) -> None:
        by_sender: dict[Name, list[Confirmed]] = {}
        for each in confirmed:
            self.closed["confirmed"] = self.closed.get("confirmed", 0) + len(each.seqs)
            for session in self._open.get((each.mesh, each.reader), ()):
                session.settle(each.seqs)
            if (each.mesh, each.sender) in self._open:
                by_sender.setdefault((each.mesh, each.sender), []).append(each)
        for name, given in by_sender.items():
            for session in self._open[name]:
                session.confirmations.offer(given)

    def _replace(self, older: ReaderSession, instance: str | None) -> None:
        is_same = older.instance is not None and older.instance == instance
        older.peer.end(CODE_SAME_INSTANCE if is_same else CODE_REPLACED, REPLACED)
        self.close(older, SessionEnd.HARMLESS)

    def _count_attempts(self, session: ReaderSession, end: SessionEnd) -> None:
        is_timeout, bounds = end is SessionEnd.TIMEOUT, session.attempt_bounds
        counted = [] if end is SessionEnd.HARMLESS else session.attempted(is_timeout=is_timeout)
        if counted:
            name = session.name
            self.defer(name, lambda unit: unit.deliveries.count_attempts(*name, counted, bounds, is_timeout=is_timeout))

    def opened_since_ns(self) -> int:
        """Return the time before which open deliveries have expired."""
        return self.clock.wall_ns() - self.settings.queue_ttl_ns
