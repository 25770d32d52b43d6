"""All meshes in memory, as committed: what the accept path and every read ask for rights.

Changed only after the commit of what changed, on the event loop. Answers are remembered per node and mesh, within a
bound, and forgotten when the mesh changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from posthouse.model.errors import PosthouseError, error
from posthouse.relay.meshes.rights import NONE, Right, Rights, rights_of
from posthouse.relay.meshes.rows import EVERYBODY, AccessRow, MemberRow, MeshRow, MeshRows, Role

_REMEMBERED = 65_536  # nodes per mesh: any key may ask in an open mesh


@dataclass
class Mesh:
    """One mesh with everything that belongs to it."""

    row: MeshRow
    members: dict[str, MemberRow] = field(default_factory=dict)
    #: name -> node
    names: dict[str, str] = field(default_factory=dict)
    access: dict[str, AccessRow] = field(default_factory=dict)
    #: topic -> who created it
    topics: dict[str, str] = field(default_factory=dict)
    #: node -> patterns
    subscriptions: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: node -> nodes it blocks
    blocks: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _rights: dict[str, Rights] = field(default_factory=dict)

    def role(self, node: str) -> Role | None:
        """Return the role of a node, or None when it is no member."""
        member = self.members.get(node)
        if member is not None:
            return member.role
        return Role.MEMBER if self.row.is_open else None

    def rights(self, node: str) -> Rights:
        """Return what a node may do here."""
        rights = self._rights.get(node)
        if rights is None:
            role = self.role(node)
            rights = NONE if role is None else rights_of(role, self.access.get(node) or self.access.get(EVERYBODY))
            if len(self._rights) >= _REMEMBERED:
                self._rights.clear()
            self._rights[node] = rights
        return rights

    def admins(self) -> list[str]:
        """Return the nodes that administer this mesh."""
        return [member.node for member in self.members.values() if member.role is Role.ADMIN]

    def put_member(self, row: MemberRow) -> None:
        """Take a member in, or change it."""
        former = self.members.get(row.node)
        if former is not None:
            self.names.pop(former.name, None)
        self.members[row.node] = row
        self.names[row.name] = row.node
        self.forget_rights()

    def drop_member(self, node: str) -> None:
        """Take a member out, with its subscriptions."""
        former = self.members.pop(node, None)
        if former is not None:
            self.names.pop(former.name, None)
        self.subscriptions.pop(node, None)
        self.forget_rights()

    def forget_rights(self) -> None:
        """Work rights out anew from now on."""
        self._rights.clear()


class Meshes:
    """The meshes of a relay."""

    def __init__(self, rows: MeshRows) -> None:
        self._meshes = {row.mesh: Mesh(row) for row in rows.meshes}
        for member in rows.members:
            self._meshes[member.mesh].put_member(member)
        for access in rows.access:
            self._meshes[access.mesh].access[access.node] = access
        for topic in rows.topics:
            self._meshes[topic.mesh].topics[topic.topic] = topic.creator
        for mesh, node, pattern in rows.subscriptions:
            self._meshes[mesh].subscriptions[node].add(pattern)
        for mesh, node, blocked in rows.blocks:
            self._meshes[mesh].blocks[node].add(blocked)

    def __len__(self) -> int:
        return len(self._meshes)

    def __contains__(self, mesh: str) -> bool:
        return mesh in self._meshes

    def all(self) -> list[Mesh]:
        """Return all meshes, in the order of their names."""
        return [self._meshes[name] for name in sorted(self._meshes)]

    def find(self, mesh: str) -> Mesh:
        """Return a mesh, or raise mesh_unknown."""
        found = self._meshes.get(mesh)
        if found is None:
            raise error("mesh_unknown", mesh=mesh)
        return found

    def put(self, row: MeshRow) -> None:
        """Take a mesh in, or change it."""
        found = self._meshes.get(row.mesh)
        if found is None:
            self._meshes[row.mesh] = Mesh(row)
        else:
            found.row = row
            found.forget_rights()

    def rights(self, node: str, mesh: str) -> Rights:
        """Return what a node may do in a mesh; nothing in one that does not exist."""
        found = self._meshes.get(mesh)
        return NONE if found is None else found.rights(node)

    def missing(self, node: str, mesh: str, right: Right) -> PosthouseError | None:
        """Return why a node may not do something in a mesh, or None when it may."""
        found = self._meshes.get(mesh)
        if found is None:
            return error("mesh_unknown", mesh=mesh)
        if right in found.rights(node):
            return None
        if found.role(node) is None:
            return error("not_member", node=node, mesh=mesh)
        return error("right_missing", node=node, mesh=mesh, right=right.value)

    def demand(self, node: str, mesh: str, right: Right) -> Mesh:
        """Return the mesh, or raise why the node may not do this in it."""
        refusal = self.missing(node, mesh, right)
        if refusal is not None:
            raise refusal
        return self._meshes[mesh]

    def readable(self, node: str) -> frozenset[str] | None:
        """Return the meshes a node may read; None means all there are."""
        names = frozenset(name for name, mesh in self._meshes.items() if Right.READ in mesh.rights(node))
        return None if len(names) == len(self._meshes) else names
