"""Topics, subscriptions and blocks: what members of a mesh change themselves.

Each change goes through MeshChanges. Repeating a subscription or a block changes nothing and writes nothing. Blocking
a node also takes its queued messages out of the blocker's queue, in the same transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from posthouse.model.errors import error
from posthouse.model.node import DEFAULT_MESH, validate_node_id
from posthouse.model.subjects import validate_subject, validate_topic
from posthouse.relay.accept.mesh_registry import Right
from posthouse.relay.meshes.administration import MeshChanges
from posthouse.relay.store.protocol import Unit
from posthouse.relay.wire.delivery_rows import NO_DELIVERIES, ClosedDeliveries

MAX_TOPICS = 10_000  # of one mesh
MAX_TOPICS_PER_KEY = 500  # so that one key cannot use up the topics of all
MAX_SUBSCRIPTIONS = 256  # of one node in a mesh
MAX_BLOCKS = 1_000  # of one node in a mesh
MAX_ROWS = 100_000  # subscriptions, or blocks, of one mesh: in an open mesh any key may add some

Change = tuple[Callable[[Unit], None], Callable[[None], None]]


class Participation:
    """Changes that a node makes for itself; the first argument is the node that asks."""

    def __init__(self, changes: MeshChanges) -> None:
        self._changes = changes
        self._meshes = changes.meshes
        #: called with the deliveries that a block took out of the queue
        self.on_blocked: Callable[[ClosedDeliveries], None] = lambda _closed: None

    def topics(self, actor: str, mesh: str) -> list[str]:
        """Return the topics of a mesh."""
        return sorted(self._meshes.require(actor, mesh, Right.READ).topics)

    async def create_topic(self, actor: str, mesh: str, topic: str) -> None:
        """Create a topic; members may."""
        validate_topic(topic)

        def prepare() -> Change:
            topics = self._meshes.require(actor, mesh, Right.WRITE).topics
            if topic in topics:
                raise error("topic_exists", topic=topic)
            self._check_topic_quota(actor, mesh)

            def write(unit: Unit) -> None:
                unit.save_topic(mesh, topic, actor)
                unit.append("topic.created", mesh=mesh, actor=actor, ref=topic)

            return write, lambda _: topics.__setitem__(topic, actor)

        await self._changes.make(prepare)

    def _check_topic_quota(self, actor: str, mesh: str) -> None:
        """Raise if the actor, or the mesh, has too many topics; the limits of the mesh apply to its admins too."""
        found = self._meshes.find(mesh)
        topics, most = found.topics, found.limits.max_topics
        if most is not None and len(topics) >= most:
            raise error("mesh_row_limit", mesh=mesh, count=len(topics), what="topics")
        if any(Right.ADMINISTER in self._meshes.rights(actor, each) for each in (mesh, DEFAULT_MESH)):
            return
        created = sum([creator == actor for creator in topics.values()])
        if created >= MAX_TOPICS_PER_KEY:
            raise error("quota_reached", count=created, what="topics of this mesh")
        if len(topics) >= MAX_TOPICS:
            raise error("mesh_row_limit", mesh=mesh, count=len(topics), what="topics")

    async def remove_topic(self, actor: str, mesh: str, topic: str) -> None:
        """Remove a topic; its creator and admins may."""

        def prepare() -> Change:
            topics = self._meshes.require(actor, mesh, Right.WRITE).topics
            if topic not in topics:
                raise error("topic_unknown", topic=topic, mesh=mesh)
            if topics[topic] != actor:
                self._meshes.require(actor, mesh, Right.ADMINISTER)

            def write(unit: Unit) -> None:
                unit.remove_topic(mesh, topic)
                unit.append("topic.removed", mesh=mesh, actor=actor, ref=topic)

            return write, lambda _: topics.__delitem__(topic)

        await self._changes.make(prepare)

    def subscriptions(self, actor: str, mesh: str) -> list[str]:
        """Return the topic patterns that a node has subscribed to."""
        return sorted(self._meshes.require(actor, mesh, Right.READ).subscriptions.get(actor, ()))

    async def subscribe(self, actor: str, mesh: str, pattern: str) -> None:
        """Subscribe to all topics that match a pattern."""
        validate_subject(pattern, allow_wildcards=True)

        def prepare() -> Change:
            rows = self._meshes.require(actor, mesh, Right.READ).subscriptions
            if pattern in rows.get(actor, ()):
                return _nothing
            _bound(rows, actor, mesh, MAX_SUBSCRIPTIONS, "subscriptions")

            def write(unit: Unit) -> None:
                unit.save_subscription(mesh, actor, pattern)
                unit.append("member.subscribed", mesh=mesh, actor=actor, ref=actor, body={"pattern": pattern})

            return write, lambda _: rows[actor].add(pattern)

        await self._changes.make(prepare)

    async def unsubscribe(self, actor: str, mesh: str, pattern: str) -> None:
        """End a subscription, if there is one."""

        def prepare() -> Change:
            rows = self._meshes.find(mesh).subscriptions
            if pattern not in rows.get(actor, ()):
                return _nothing

            def write(unit: Unit) -> None:
                unit.remove_subscription(mesh, actor, pattern)
                unit.append("member.unsubscribed", mesh=mesh, actor=actor, ref=actor, body={"pattern": pattern})

            return write, lambda _: _discard(rows, actor, pattern)

        await self._changes.make(prepare)

    def blocks(self, actor: str, mesh: str) -> list[str]:
        """Return the nodes that a node blocks."""
        return sorted(self._meshes.require(actor, mesh, Right.READ).blocks.get(actor, ()))

    async def block(self, actor: str, mesh: str, node: str) -> None:
        """Refuse messages from a node, including those that are queued."""
        validate_node_id(node)

        def prepare() -> tuple[Callable[[Unit], ClosedDeliveries], Callable[[ClosedDeliveries], None]]:
            rows = self._meshes.require(actor, mesh, Right.READ).blocks
            if node in rows.get(actor, ()):
                return _nothing_closed
            _bound(rows, actor, mesh, MAX_BLOCKS, "blocks")

            def write(unit: Unit) -> ClosedDeliveries:
                unit.save_block(mesh, actor, node)
                unit.append("member.blocked", mesh=mesh, actor=actor, ref=node)
                return unit.deliveries.block(mesh, actor, node)

            def apply(closed: ClosedDeliveries) -> None:
                rows[actor].add(node)
                self.on_blocked(closed)

            return write, apply

        await self._changes.make(prepare)

    async def unblock(self, actor: str, mesh: str, node: str) -> None:
        """Lift a block, if there is one."""

        def prepare() -> Change:
            rows = self._meshes.find(mesh).blocks
            if node not in rows.get(actor, ()):
                return _nothing

            def write(unit: Unit) -> None:
                unit.remove_block(mesh, actor, node)
                unit.append("member.unblocked", mesh=mesh, actor=actor, ref=node)

            return write, lambda _: _discard(rows, actor, node)

        await self._changes.make(prepare)


def _no_rows(_unit: Unit) -> None:
    """Write nothing: the change was made before."""


def _apply_nothing(_result: None) -> None:
    """Change nothing in memory."""


_nothing: Change = (_no_rows, _apply_nothing)


def _none_closed(_unit: Unit) -> ClosedDeliveries:
    """Write nothing: the block exists."""
    return NO_DELIVERIES


_nothing_closed: tuple[Callable[[Unit], ClosedDeliveries], Callable[[ClosedDeliveries], None]] = (
    _none_closed,
    lambda _closed: None,
)


def _bound(rows: defaultdict[str, set[str]], actor: str, mesh: str, most: int, what: str) -> None:
    count = len(rows.get(actor, ()))
    if count >= most:
        raise error("mesh_row_limit", mesh=mesh, count=count, what=what)
    total = sum(map(len, rows.values()))
    if total >= MAX_ROWS:
        raise error("mesh_row_limit", mesh=mesh, count=total, what=what)


def _discard(rows: defaultdict[str, set[str]], actor: str, value: str) -> None:
    rows[actor].discard(value)
    if not rows[actor]:
        del rows[actor]
