"""Queues and message states, as readers and operators see and change them: reject, purge, requeue, inspect.

Each change is one unit of work; open sessions get it after its commit. Admins of a mesh are its operators: they see
states, not content. The sender and admins see all recipients of a message, a recipient sees only itself; a node that
may no longer read the mesh sees nothing. A block stays hidden: to the sender a blocked delivery looks queued, and later
expired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.event import is_event_id
from posthouse.model.message_api import State
from posthouse.relay.accept.mesh_registry import Meshes, Right
from posthouse.relay.messages.sessions import ReaderSessions
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.store.protocol import RelayStore
from posthouse.relay.wire.delivery_rows import OPEN, PARKED

_ROWS_PER_UNIT = 1_000  # keeps a transaction in the low milliseconds


class QueueOperations:
    """Operations on queues; the first argument of every method is the node that asks."""

    def __init__(self, sessions: ReaderSessions, meshes: Meshes) -> None:
        self._sessions = sessions
        self._reads = sessions.store.deliveries
        self._meshes = meshes

    async def reject(self, node: str, message_id: str, reason: str) -> None:
        """Park an open delivery of a reader, or raise an error if it cannot be parked."""
        found = await self._reads.message(message_id, node)
        if found is None or not found["deliveries"]:
            raise error("delivery_unknown", id=message_id)
        mesh = found["mesh"]
        self._meshes.require(node, mesh, Right.READ)
        ttl_ns = self._sessions.settings.queue_ttl_ns
        state, closed = await self._sessions.submit(
            lambda unit: unit.deliveries.reject(mesh, node, message_id, reason, unit.now_ns - ttl_ns)
        )
        if not closed.seqs:
            raise error("delivery_closed", id=message_id, state=state)
        self._sessions.apply_closed(closed)

    async def overview(self, actor: str, mesh: str, after: str = "", limit: int = 500) -> list[dict[str, Any]]:
        """Return the queues of a mesh that are not empty."""
        self._meshes.require(actor, mesh, Right.ADMINISTER)
        return await self._reads.queues(mesh, after, limit)

    async def rows(
        self,
        actor: str,
        mesh: str,
        node: str | None,
        states: Sequence[State],
        after: tuple[int, str] = (0, ""),
        limit: int = 500,
    ) -> list[dict[str, Any]]:
        """Return deliveries of one queue, or of all queues of a mesh; a reader may see its own, open or parked."""
        is_own = node == actor and (OPEN | PARKED).issuperset(states)
        self._meshes.require(actor, mesh, Right.READ if is_own else Right.ADMINISTER)
        return await self._reads.queue_rows(mesh, node, states, after, limit)

    async def purge(
        self,
        actor: str,
        mesh: str,
        node: str,
        ids: Sequence[str] | None,
        states: Sequence[State] = tuple(OPEN),
        via: str | None = None,
    ) -> list[str]:
        """Close deliveries of a queue permanently: the named ones, or all in these states. Return their message ids.

        `via` is the program through which the operator acts, for the journal; likewise in `requeue`.
        """
        self._meshes.require(actor, mesh, Right.ADMINISTER)
        _check_ids(ids)
        purged: list[str] = []
        while True:
            names, closed = await self._sessions.submit(
                lambda unit: unit.deliveries.purge(mesh, node, actor, ids, sorted(states), _ROWS_PER_UNIT, via)
            )
            purged += names
            self._sessions.apply_closed(closed)
            if len(names) < _ROWS_PER_UNIT:
                return purged

    async def requeue(
        self, actor: str, mesh: str, node: str, ids: Sequence[str] | None, via: str | None = None
    ) -> tuple[list[str], list[str]]:
        """Open parked deliveries again at the tail; return their ids, and the ids of those that had no room."""
        self._meshes.require(actor, mesh, Right.ADMINISTER)
        _check_ids(ids)
        queue_max = self._sessions.settings.queue_max
        reopened, left = await self._sessions.submit(
            lambda unit: unit.deliveries.requeue(mesh, node, actor, ids, queue_max, _ROWS_PER_UNIT, via)
        )
        if reopened:
            self._sessions.apply_reopened(mesh, node)
        return reopened, left


def states_named(name: str) -> frozenset[State]:
    """Return the states that a name covers: open, parked, or a single state."""
    if name == "open":
        return OPEN
    return PARKED if name == "parked" else frozenset({State(name)})


def _check_ids(ids: Sequence[str] | None) -> None:
    for id_ in ids or ():
        if not is_event_id(id_):
            raise error("id_invalid", id=id_[:80], reason="an event id is 64 lower-case hexadecimal digits")


class MessageStatus:
    """States of messages, for the nodes that may see them."""

    def __init__(self, store: RelayStore, meshes: Meshes, clock: Clock, settings: DeliverySettings) -> None:
        self._store = store
        self._meshes = meshes
        self._clock = clock
        self._settings = settings

    async def message(self, node: str, message_id: str) -> dict[str, Any]:
        """Return a message's record and states, or raise message_unknown."""
        found = await self._store.deliveries.message(message_id, None)
        if found is None:
            raise error("message_unknown", id=message_id)
        rights = self._meshes.rights(node, found["mesh"])
        if Right.ADMINISTER not in rights:
            if node != found["sender"]:
                found["deliveries"] = [each for each in found["deliveries"] if each["recipient"] == node]
            is_concerned = node == found["sender"] or bool(found["deliveries"])
            if not is_concerned or Right.READ not in rights:
                raise error("message_unknown", id=message_id)
        for delivery in found["deliveries"]:
            self._adapt(delivery, is_sender=node == found["sender"])
        return {"id": message_id} | found

    def _adapt(self, delivery: dict[str, Any], *, is_sender: bool) -> None:
        """Hide a block from the sender, and show a delivery that is too old as expired before a sweep closes it."""
        is_old = self._clock.wall_ns() - delivery["queued_at_ns"] > self._settings.queue_ttl_ns
        if is_sender and delivery["state"] == State.BLOCKED:
            delivery |= {
                "state": State.QUEUED,
                "closed_at_ns": None,
                "was_stored": None,
                "attempts": 0,
                "sent_at_ns": None,
            }
        if is_old and delivery["state"] in OPEN:
            delivery["state"] = State.EXPIRED
