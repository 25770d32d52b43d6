"""The meshes of a relay in memory, as committed: members, rights, topics, subscriptions, blocks, rules and limits.

A role gives rights, and access rows take some of them away. Nothing takes away the right to administer, so a mesh
always has an admin who can repair it. A suspended or deleted mesh gives no rights, a retired key has none anywhere, and
a held key (the new key of a member, which an admin has not approved) has none in that mesh. The registry changes only
after a commit, on the event loop.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from posthouse.model.errors import PosthouseError, error
from posthouse.model.fence_rules import FenceRule
from posthouse.model.mesh_limits import NO_LIMITS, MeshLimits, stricter
from posthouse.model.node import Role, name_skeleton
from posthouse.relay.wire.mesh_rows import (
    ALL_NODES,
    AccessRow,
    HeldKey,
    LimitSource,
    MemberRow,
    MeshRow,
    MeshRows,
    MeshState,
    RetiredKey,
    Verdict,
)


class Right(enum.StrEnum):
    """A right of a node in a mesh."""

    READ = "read"
    WRITE = "write"
    LOCK = "lock"
    ADMINISTER = "administer"


Rights = frozenset[Right]
NO_RIGHTS: Rights = frozenset()
_OF_ROLE: dict[Role, Rights] = {
    Role.READER: frozenset({Right.READ}),
    Role.MEMBER: frozenset({Right.READ, Right.WRITE, Right.LOCK}),
    Role.ADMIN: frozenset(Right),
}


def rights_of(role: Role, access: AccessRow | None) -> Rights:
    """Return the rights of a role, without those that the access row denies."""
    rights = _OF_ROLE[role]
    if access is None:
        return rights
    verdicts = {Right.READ: access.read, Right.WRITE: access.write, Right.LOCK: access.lock}
    return rights - {right for right, verdict in verdicts.items() if verdict is Verdict.DENY}


_CACHED_NODES = 65_536  # entries of one cache, because any key may ask


@dataclass
class Mesh:
    """One mesh with its members, access rows, topics, subscriptions and blocks."""

    row: MeshRow
    members: dict[str, MemberRow] = field(default_factory=dict)
    #: name -> node
    names: dict[str, str] = field(default_factory=dict)
    #: skeleton -> names that look alike; several only if they joined before the relay compared names
    alike: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    access: dict[str, AccessRow] = field(default_factory=dict)
    #: topic -> the node that created it
    topics: dict[str, str] = field(default_factory=dict)
    #: node -> patterns
    subscriptions: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: node -> nodes that it blocks
    blocks: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    #: called after a change that rights depend on
    on_rights_changed: Callable[[], None] = lambda: None
    #: (kind, prefix of d) -> rule
    fence_rules: dict[tuple[int, str], FenceRule] = field(default_factory=dict)
    limit_sets: dict[LimitSource, MeshLimits] = field(default_factory=lambda: dict.fromkeys(LimitSource, NO_LIMITS))
    #: the stricter limits of both sets
    limits: MeshLimits = NO_LIMITS
    #: of the whole relay: the limits of the meshes that have any
    limited: dict[str, MeshLimits] = field(default_factory=dict)
    #: of the whole relay
    retired: Mapping[str, RetiredKey] = field(default_factory=dict)
    #: new keys of members that wait for the approval of an admin
    held: dict[str, HeldKey] = field(default_factory=dict)
    _rights: dict[str, Rights] = field(default_factory=dict)

    def role(self, node: str) -> Role | None:
        """Return the role of a node, or None if it is not a member."""
        if self.row.state is not MeshState.ACTIVE or node in self.retired:
            return None
        member = self.members.get(node)
        if member is not None:
            return member.role
        return Role.MEMBER if self.row.is_open else None

    def rights(self, node: str) -> Rights:
        """Return the rights of a node in this mesh."""
        rights = self._rights.get(node)
        if rights is None:
            rights = self.find_rights(node)
            if len(self._rights) >= _CACHED_NODES:
                self._rights.clear()
            self._rights[node] = rights
        return rights

    def find_rights(self, node: str) -> Rights:
        """Return the rights of a node without the cache; other threads than the event loop's may call it."""
        return NO_RIGHTS if node in self.held else self.rights_when_approved(node)

    def rights_when_approved(self, node: str) -> Rights:
        """Return the rights that a node has, or will have once its new key is approved: until then its queue fills."""
        role = self.role(node)
        return NO_RIGHTS if role is None else rights_of(role, self.access.get(node) or self.access.get(ALL_NODES))

    def admins(self) -> list[str]:
        """Return the nodes that administer this mesh; a held key does not."""
        admins = [member.node for member in self.members.values() if member.role is Role.ADMIN]
        return [node for node in admins if node not in self.held]

    def held_after(self, ended: RetiredKey) -> HeldKey | None:
        """Return the entry of a successor that has to wait for approval, or None.

        A held key that changes again stays held. A key waits only if another admin can approve it.
        """
        node, successor = ended.node, str(ended.successor)
        if node in self.held:
            return replace(self.held[node], node=successor)
        if not self.row.approves_keys or node not in self.members:
            return None
        can_approve = any(admin != node and admin not in self.retired for admin in self.admins())
        return HeldKey(self.row.mesh, successor, node, ended.at_ns) if can_approve else None

    def release(self, node: str) -> None:
        """Give a held key the rights of its member."""
        self.held.pop(node, None)
        self.clear_rights()

    def put_member(self, row: MemberRow) -> None:
        """Add a member, or change it."""
        self.list_member(row)
        self.clear_rights()

    def list_member(self, row: MemberRow) -> None:
        """Add a member, or change it, before the registry is shared."""
        self._drop_name(row.node)
        self.members[row.node] = row
        self.names[row.name] = row.node
        self.alike[name_skeleton(row.name)].add(row.name)

    def empty(self, row: MeshRow) -> None:
        """Remove everything about a mesh except that it exists."""
        self.row = row
        for table in (self.members, self.names, self.alike, self.access, self.topics, self.subscriptions, self.blocks):
            table.clear()
        self.fence_rules.clear()
        self.held.clear()
        for source in LimitSource:
            self.put_limits(source, NO_LIMITS)

    def drop_member(self, node: str) -> None:
        """Remove a member with its subscriptions."""
        self._drop_name(node)
        self.members.pop(node, None)
        self.held.pop(node, None)
        self.subscriptions.pop(node, None)
        self.clear_rights()

    def move_node(self, node: str, successor: str) -> None:
        """Give everything that a node has here to another node, which has nothing yet."""
        member = self.members.get(node)
        if member is not None:
            self._drop_name(node)
            del self.members[node]
            self.list_member(replace(member, node=successor))
        if node in self.access:
            self.access[successor] = replace(self.access.pop(node), node=successor)
        for table in (self.subscriptions, self.blocks):
            if node in table:
                table[successor] = table.pop(node)
        for blocked in self.blocks.values():
            if node in blocked:
                blocked.remove(node)
                blocked.add(successor)
        for topic, creator in self.topics.items():
            if creator == node:
                self.topics[topic] = successor
        self.clear_rights()

    def _drop_name(self, node: str) -> None:
        former = self.members.get(node)
        if former is None:
            return
        skeleton = name_skeleton(former.name)
        self.names.pop(former.name, None)
        self.alike[skeleton].discard(former.name)
        if not self.alike[skeleton]:
            del self.alike[skeleton]

    def put_limits(self, source: LimitSource, limits: MeshLimits) -> None:
        """Change one set of limits."""
        self.limit_sets[source] = limits
        self.limits = stricter(self.limit_sets[LimitSource.MESH], self.limit_sets[LimitSource.RELAY])
        if self.limits == NO_LIMITS:
            self.limited.pop(self.row.mesh, None)
        else:
            self.limited[self.row.mesh] = self.limits

    def clear_rights(self) -> None:
        """Clear the cache of rights after a change that rights depend on, and notify the watchers."""
        self._rights.clear()
        self.on_rights_changed()


class Meshes:
    """All meshes of a relay, as committed."""

    def __init__(self, rows: MeshRows) -> None:
        self._watchers: dict[Callable[[str], None], None] = {}
        #: keys that may not be used any more
        self.retired = {row.node: row for row in rows.retired_keys}
        #: these, and the keys that the running transaction retires; changed and read on the writer's thread
        self.retiring = dict(self.retired)
        #: limits in force, of the meshes that have any; any thread may read it
        self.limited: dict[str, MeshLimits] = {}
        #: answers of `has_member`, until a mesh changes
        self._has_member: dict[str, bool] = {}
        self._meshes = {row.mesh: self._watched(row) for row in rows.meshes if row.state is not MeshState.DELETED}
        #: names that stay taken
        self._deleted = {row.mesh for row in rows.meshes if row.state is MeshState.DELETED}
        #: seq of the last change by another relay that this registry reflects
        self.changed_at = 0
        self._fill(rows)

    def reload(self, mesh: str, rows: MeshRows) -> None:
        """Replace everything about a mesh: another relay has changed it."""
        (row,) = rows.meshes
        for key in rows.retired_keys:
            self.retired[key.node] = self.retiring[key.node] = key
        if row.state is MeshState.DELETED:
            self.drop(mesh)
            return
        found = self._meshes.get(mesh)
        if found is None:
            found = self._meshes[mesh] = self._watched(row)
        else:
            found.empty(row)  # in place: changes that wait for their commit refer to it
        self._fill(rows)
        found.clear_rights()

    def _fill(self, rows: MeshRows) -> None:
        for key in rows.held_keys:  # before the members: other threads read rights
            self._meshes[key.mesh].held[key.node] = key
        for member in rows.members:
            self._meshes[member.mesh].list_member(member)
        for access in rows.access:
            self._meshes[access.mesh].access[access.node] = access
        for topic in rows.topics:
            self._meshes[topic.mesh].topics[topic.topic] = topic.creator
        for mesh, node, pattern in rows.subscriptions:
            self._meshes[mesh].subscriptions[node].add(pattern)
        for mesh, node, blocked in rows.blocks:
            self._meshes[mesh].blocks[node].add(blocked)
        for mesh, rule in rows.fence_rules:
            self._meshes[mesh].fence_rules[rule.kind, rule.d_prefix] = rule
        for each in rows.limits:
            self._meshes[each.mesh].put_limits(each.source, each.limits)

    def __len__(self) -> int:
        return len(self._meshes)

    def __contains__(self, mesh: str) -> bool:
        return mesh in self._meshes

    def all(self) -> list[Mesh]:
        """Return all meshes, ordered by name."""
        return [self._meshes[name] for name in sorted(self._meshes)]

    def find(self, mesh: str) -> Mesh:
        """Return a mesh, or raise mesh_unknown."""
        found = self._meshes.get(mesh)
        if found is None:
            raise self._unknown(mesh)
        return found

    def check_free(self, mesh: str) -> None:
        """Raise if a name is taken, even by a mesh that was deleted."""
        if mesh in self._deleted:
            raise error("mesh_deleted", mesh=mesh)
        if mesh in self._meshes:
            raise error("mesh_exists", mesh=mesh)

    def drop(self, mesh: str) -> None:
        """Remove a mesh that was deleted; its name stays taken."""
        self._deleted.add(mesh)
        self.limited.pop(mesh, None)
        if self._meshes.pop(mesh, None) is not None:
            self._notify(mesh)

    def _unknown(self, mesh: str) -> PosthouseError:
        return error("mesh_deleted" if mesh in self._deleted else "mesh_unknown", mesh=mesh)

    def has_member(self, node: str) -> bool:
        """Return True if a node is a member of some mesh; in an open mesh every node is."""
        known = self._has_member.get(node)
        if known is None:
            if len(self._has_member) >= _CACHED_NODES:
                self._has_member.clear()
            known = self._has_member[node] = any(mesh.role(node) is not None for mesh in self._meshes.values())
        return known

    def put(self, row: MeshRow) -> None:
        """Add a mesh, or change it."""
        found = self._meshes.get(row.mesh)
        if found is None:
            self._meshes[row.mesh] = self._watched(row)
            self._notify(row.mesh)
        else:
            found.row = row
            found.clear_rights()

    def watch_rights(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Call `watcher` with a mesh whenever rights of nodes in it may have changed; return its end."""
        self._watchers[watcher] = None
        return lambda: self._watchers.pop(watcher, None)

    def retire(self, row: RetiredKey) -> None:
        """Refuse a key from now on, and move its memberships and rights to its successor."""
        self.retired[row.node] = self.retiring[row.node] = row
        for mesh in self._meshes.values():
            if row.successor is not None:
                if (held := mesh.held_after(row)) is not None:  # before it is a member: other threads read rights
                    mesh.held[held.node] = held
                    mesh.held.pop(row.node, None)
                mesh.move_node(row.node, row.successor)
            else:
                mesh.clear_rights()

    @property
    def has_suspects(self) -> bool:
        """Whether events of some key are marked when they are read."""
        return any(row.suspect_from_ns is not None for row in self.retired.values())

    def successor(self, node: str) -> str:
        """Return the current key of a node: itself, or the end of its chain of successors."""
        while (row := self.retired.get(node)) is not None and row.successor is not None:
            node = row.successor
        return node

    def former_keys(self, node: str) -> list[str]:
        """Return the keys that a node has succeeded, the latest first."""
        former = {row.successor: row.node for row in self.retired.values() if row.successor is not None}
        found: list[str] = []
        while (before := former.get(found[-1] if found else node)) is not None:
            found.append(before)
        return found

    def key_error(self, node: str) -> PosthouseError | None:
        """Return why a key may not be used any more, or None."""
        row = self.retiring.get(node)
        if row is None:
            return None
        if row.successor is None:
            return error("key_revoked", node=node)
        return error("key_rotated", node=node, successor=self.successor(row.successor))

    def _watched(self, row: MeshRow) -> Mesh:
        on_rights_changed = partial(self._notify, row.mesh)
        return Mesh(row, on_rights_changed=on_rights_changed, retired=self.retired, limited=self.limited)

    def _notify(self, mesh: str) -> None:
        self._has_member.clear()
        for watcher in list(self._watchers):
            watcher(mesh)

    def rights(self, node: str, mesh: str) -> Rights:
        """Return the rights of a node in a mesh; none in a mesh that does not exist."""
        found = self._meshes.get(mesh)
        return NO_RIGHTS if found is None else found.rights(node)

    def authorization_error(self, node: str, mesh: str, right: Right) -> PosthouseError | None:
        """Return why a node lacks a right in a mesh, or None if it has it."""
        found = self._meshes.get(mesh)
        if found is not None and right in found.rights(node):
            return None
        return self._missing_right(found, node, mesh, right)

    def mesh_error(self, mesh: str) -> PosthouseError | None:
        """Return why no node can write to a mesh, or None."""
        found = self._meshes.get(mesh)
        if found is None:
            return self._unknown(mesh)
        return error("mesh_suspended", mesh=mesh) if found.row.state is MeshState.SUSPENDED else None

    def early_error(self, node: str, mesh: str, right: Right) -> PosthouseError | None:
        """The same as `authorization_error`, on any thread; the answer may be outdated when it returns."""
        found = self._meshes.get(mesh)
        if found is not None and right in found.find_rights(node):
            return None
        return self._missing_right(found, node, mesh, right)

    def _missing_right(self, found: Mesh | None, node: str, mesh: str, right: Right) -> PosthouseError:
        if (retired := self.key_error(node)) is not None:
            return retired
        refusal = self.mesh_error(mesh)
        if refusal is not None or found is None:
            return refusal or self._unknown(mesh)
        if node in found.held:
            return error("key_not_approved", node=node, mesh=mesh)
        if found.role(node) is None:
            return error("not_member", node=node, mesh=mesh)
        return error("right_missing", node=node, mesh=mesh, right=right.value)

    def require(self, node: str, mesh: str, right: Right) -> Mesh:
        """Return the mesh, or raise an error if the node lacks a right in it."""
        refusal = self.authorization_error(node, mesh, right)
        if refusal is not None:
            raise refusal
        return self._meshes[mesh]

    def readable(self, node: str) -> frozenset[str] | None:
        """Return the meshes that a node may read; None means all."""
        names = frozenset(name for name, mesh in self._meshes.items() if Right.READ in mesh.rights(node))
        return None if len(names) == len(self._meshes) else names
