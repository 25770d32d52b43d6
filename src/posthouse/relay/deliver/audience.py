"""Who gets messages at the moment of their commit: who subscribed and may read, and who blocks the sender.

Used on the writer's thread only, inside transactions. What was worked out is kept as long as the mesh's version says
that nothing it depends on has changed, so it can neither lag behind a commit nor outlive a rollback.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from posthouse.model.trie import PatternTrie
from posthouse.relay.deliver.interface import DeliveryUnit
from posthouse.relay.meshes.registry import Mesh, Meshes
from posthouse.relay.meshes.rights import Right

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
