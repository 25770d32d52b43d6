"""Recipients of a message at its commit: who subscribed and may read, who blocks the sender, who has room.

Used on the writer's thread only, inside transactions. The audience of a mesh is cached as long as the mesh's
version says that nothing it depends on has changed, so it neither lags behind a commit nor outlives a rollback.
Queue depths are counted in memory while a group is accepted, so that its messages see each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from posthouse.model.subjects import PatternTrie
from posthouse.relay.accept.authorize import Mesh, Meshes, Right
from posthouse.relay.accept.submission import CommitEffects
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.store.delivery_protocol import DeliveryUnit
from posthouse.relay.store.protocol import Unit

_TOPICS_KEPT = 1_024  # answers remembered per mesh


class MeshAudience:
    """One mesh as its tables stand."""

    def __init__(self, version: int, mesh: Mesh) -> None:
        self.version = version
        self._mesh = mesh
        self._patterns: PatternTrie[str] = PatternTrie()
        for node, patterns in mesh.subscriptions.items():
            for pattern in sorted(patterns):
                self._patterns.add(pattern, node)
        self._readers: dict[str, tuple[str, ...]] = {}
        self._blockers: defaultdict[str, set[str]] = defaultdict(set)
        for node, blocked in mesh.blocks.items():
            for each in blocked:
                self._blockers[each].add(node)

    def has_topic(self, topic: str) -> bool:
        """Tell whether a topic exists."""
        return topic in self._mesh.topics

    def has_member(self, node: str) -> bool:
        """Tell whether a node can be written to."""
        return self._mesh.role(node) is not None

    def blockers(self, node: str) -> Collection[str]:
        """Return who blocks a node."""
        return self._blockers.get(node, ())

    def readers(self, topic: str) -> tuple[str, ...]:
        """Return who has a matching subscription and may read, each once."""
        readers = self._readers.get(topic)
        if readers is None:
            nodes = dict.fromkeys(self._patterns.match(topic))
            readers = tuple(node for node in nodes if Right.READ in self._mesh.rights(node))
            if len(self._readers) >= _TOPICS_KEPT:
                self._readers.clear()
            self._readers[topic] = readers
        return readers


class Audience:
    """The meshes whose audience was worked out."""

    def __init__(self) -> None:
        self._meshes: dict[str, MeshAudience] = {}

    def of(self, unit: DeliveryUnit, mesh: str) -> MeshAudience | None:
        """Return a mesh as this transaction sees it, or None when there is no such mesh."""
        version = unit.audience_version(mesh)
        if version is None:
            return None
        known = self._meshes.get(mesh)
        if known is None or known.version != version:
            known = self._meshes[mesh] = MeshAudience(version, Meshes(unit.audience_rows(mesh)).find(mesh))
        return known


#: mesh and node
Name = tuple[str, str]
_EXPIRED_PER_LOOK = 1_000


class GroupQueue:
    """A mailbox as one group sees it."""

    __slots__ = ("added", "mesh", "node", "number", "rows")

    def __init__(self, mesh: str, node: str) -> None:
        self.mesh = mesh
        self.node = node
        #: in the store; 0 while there is no such mailbox, all that were written have one
        self.number = 0
        self.rows = 0
        #: rows of this group, not written yet
        self.added = 0


class GroupQueues:
    """The mailboxes that a group touches."""

    def __init__(self, unit: Unit, settings: DeliverySettings, mail: CommitEffects) -> None:
        self._unit = unit
        self._settings = settings
        self._mail = mail
        self._boxes: dict[Name, GroupQueue] = {}

    def load(self, names: Iterable[Name]) -> list[GroupQueue]:
        """Return mailboxes, in order; those that were not read yet are read with one statement per mesh."""
        boxes, unread = [], []
        for name in names:
            box = self._boxes.get(name)
            if box is None:
                box = self._boxes[name] = GroupQueue(*name)
                unread.append(name)
            boxes.append(box)
        self._read(unread)
        return boxes

    def find(self, mesh: str, node: str) -> GroupQueue:
        """Return a mailbox that was loaded."""
        return self._boxes[mesh, node]

    def has_room(self, box: GroupQueue) -> bool:
        """Tell whether one more message fits; what is too old makes room first."""
        most = self._settings.queue_max
        if box.rows + box.added < most:
            return True
        before_ns = self._unit.now_ns - self._settings.queue_ttl_ns
        closed = self._unit.deliveries.expire(box.mesh, box.node, before_ns, _EXPIRED_PER_LOOK)
        if closed.seqs:
            box.rows -= len(closed.seqs)
            self._mail.closed.append(closed)
        return box.rows + box.added < most

    def write(self, boxes: Iterable[GroupQueue]) -> None:
        """Write the depths; afterwards every one of these mailboxes has its number."""
        changed = [box for box in dict.fromkeys(boxes) if box.added or not box.number]
        self._unit.deliveries.grow([(box.mesh, box.node, box.added) for box in changed])
        for box in changed:
            box.rows, box.added = box.rows + box.added, 0
        self._read([(box.mesh, box.node) for box in changed if not box.number])

    def _read(self, names: list[Name]) -> None:
        nodes: dict[str, list[str]] = {}
        for mesh, node in names:
            nodes.setdefault(mesh, []).append(node)
        for mesh, wanted in nodes.items():
            for node, found in self._unit.deliveries.boxes(mesh, wanted).items():
                box = self._boxes[mesh, node]
                box.number, box.rows = found.mailbox, found.open_rows
