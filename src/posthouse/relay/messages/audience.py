"""Recipients of a message at its commit: readers of a topic, readers that block the sender, queues with room.

Used on the writer's thread only, inside transactions. The audience of a mesh is cached until the version of the mesh
changes, so it neither lags behind a commit nor outlives a rollback. Queue depths are counted in memory while a group
is accepted, so that its messages see each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from posthouse.model.errors import PosthouseError, error
from posthouse.model.subjects import PatternTrie
from posthouse.relay.accept.mesh_registry import Mesh, Meshes, Right
from posthouse.relay.accept.submission import CommitEffects
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.store.delivery_protocol import DeliveryUnit
from posthouse.relay.store.protocol import Unit

_CACHED_TOPICS = 1_024  # per mesh


class MeshAudience:
    """The possible recipients in one mesh, at one version of its tables."""

    def __init__(self, version: int, meshes: Meshes, mesh: Mesh) -> None:
        self.version = version
        self._successor = meshes.successor
        self._mesh = mesh
        self._patterns: PatternTrie[str] = PatternTrie()
        for node, patterns in mesh.subscriptions.items():
            for pattern in sorted(patterns):
                self._patterns.add(pattern, node)
        self._readers: dict[str, tuple[str, ...]] = {}
        #: node -> the nodes that block it
        self.blockers: defaultdict[str, set[str]] = defaultdict(set)
        for node, blocked in mesh.blocks.items():
            for each in blocked:
                self.blockers[each].add(node)

    def find_readers(self, sender: str, recipient: str | None, topic: str) -> tuple[str, ...] | PosthouseError:
        """Return the nodes that a message is for, or why there is no such destination.

        A message to a key that was rotated goes to its successor, which can open it with the old key.
        """
        mesh = self._mesh.row.mesh
        if recipient is not None:
            retired = self._mesh.retired
            reader = self._successor(recipient) if recipient in retired else recipient
            is_member = (self._mesh.row.is_open or reader in self._mesh.members) and reader not in retired
            return (reader,) if is_member else error("member_unknown", node=recipient, mesh=mesh)
        if topic not in self._mesh.topics:
            return error("topic_unknown", topic=topic, mesh=mesh)
        return tuple([node for node in self._subscribers(topic) if node != sender])

    def _subscribers(self, topic: str) -> tuple[str, ...]:
        """Return the nodes that have a matching subscription and may read, each once."""
        readers = self._readers.get(topic)
        if readers is None:
            nodes = dict.fromkeys(self._patterns.match(topic))
            readers = tuple(node for node in nodes if Right.READ in self._mesh.rights_when_approved(node))
            if len(self._readers) >= _CACHED_TOPICS:
                self._readers.clear()
            self._readers[topic] = readers
        return readers


class Audience:
    """The cached audiences of meshes."""

    def __init__(self) -> None:
        self._meshes: dict[str, MeshAudience] = {}

    def of(self, unit: DeliveryUnit, mesh: str) -> MeshAudience | None:
        """Return the audience of a mesh as this transaction sees it, or None if there is no such mesh."""
        version = unit.audience_version(mesh)
        if version is None:
            return None
        known = self._meshes.get(mesh)
        if known is None or known.version != version:
            meshes = Meshes(unit.audience_rows(mesh))
            known = self._meshes[mesh] = MeshAudience(version, meshes, meshes.find(mesh))
        return known


#: mesh and node
Name = tuple[str, str]
_EXPIRED_AT_ONCE = 1_000  # deliveries: keeps the transaction that needs their room in the low milliseconds


class GroupQueue:
    """The queue of a node, as one group sees it."""

    __slots__ = ("added", "mesh", "node", "queue_id", "rows")

    def __init__(self, mesh: str, node: str) -> None:
        self.mesh = mesh
        self.node = node
        #: 0 while the store has no queue of this node; `GroupQueues.write` creates it
        self.queue_id = 0
        self.rows = 0
        #: deliveries of this group, not written yet
        self.added = 0


class GroupQueues:
    """The queues that a group touches."""

    def __init__(self, unit: Unit, settings: DeliverySettings, effects: CommitEffects, names: Iterable[Name]) -> None:
        self._unit = unit
        self._settings = settings
        self._effects = effects
        #: the queues that were loaded
        self.by_name: dict[Name, GroupQueue] = {}
        self.load(names)

    def load(self, names: Iterable[Name]) -> list[GroupQueue]:
        """Return queues, in order; those that are not loaded yet are read with one statement per mesh."""
        queues, unread = [], []
        for name in names:
            queue = self.by_name.get(name)
            if queue is None:
                queue = self.by_name[name] = GroupQueue(*name)
                unread.append(name)
            queues.append(queue)
        self._read(unread)
        return queues

    def has_room(self, queue: GroupQueue) -> bool:
        """Return True if one more message fits; a full queue drops its expired deliveries first."""
        most = self._settings.queue_max
        if queue.rows + queue.added < most:
            return True
        before_ns = self._unit.now_ns - self._settings.queue_ttl_ns
        closed = self._unit.deliveries.expire(queue.mesh, queue.node, before_ns, _EXPIRED_AT_ONCE)
        if closed.seqs:
            queue.rows -= len(closed.seqs)
            self._effects.closed.append(closed)
        return queue.rows + queue.added < most

    def write(self, queues: Iterable[GroupQueue]) -> None:
        """Write the depths of queues and create those that do not exist yet."""
        changed = [queue for queue in dict.fromkeys(queues) if queue.added or not queue.queue_id]
        self._unit.deliveries.grow([(queue.mesh, queue.node, queue.added) for queue in changed])
        unread: list[Name] = []
        for queue in changed:
            queue.rows, queue.added = queue.rows + queue.added, 0
            if not queue.queue_id:
                unread.append((queue.mesh, queue.node))
        if unread:
            self._read(unread)

    def _read(self, names: list[Name]) -> None:
        nodes: dict[str, list[str]] = {}
        for mesh, node in names:
            nodes.setdefault(mesh, []).append(node)
        for mesh, unread in nodes.items():
            for node, found in self._unit.deliveries.queues(mesh, unread).items():
                queue = self.by_name[mesh, node]
                queue.queue_id, queue.rows = found.queue_id, found.open_rows
