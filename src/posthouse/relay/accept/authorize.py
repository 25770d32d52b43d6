"""Authorize: the rights of nodes in meshes, their rates, and the stage that applies both to an event.

A role gives rights and access rows take some away; administering cannot be taken away, so a mesh always has
somebody who can repair it. The registry holds all meshes in memory as committed and changes only after a commit, on
the event loop. Rates are token buckets per key in boot time, within bounded memory. A refusal is not final: an
event whose id is known gets its first answer again and costs no rate; only the transaction knows the ids, so the
refusal travels there with the event.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass, field

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import check_times
from posthouse.model.kinds import CONFIRMATION, is_ephemeral
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS, SECOND_NS
from posthouse.model.rate import Bucket, Rate, full_bucket, is_full, take
from posthouse.relay.accept.submission import Job
from posthouse.relay.store.event_rows import EventRow
from posthouse.relay.wire.mesh_rows import EVERYBODY, AccessRow, MemberRow, MeshRow, MeshRows, Role, Verdict


class Right(enum.StrEnum):
    """What can be allowed in a mesh."""

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
    """Return the rights of a role, less what the access row that counts denies."""
    rights = _OF_ROLE[role]
    if access is None:
        return rights
    verdicts = {Right.READ: access.read, Right.WRITE: access.write, Right.LOCK: access.lock}
    return rights - {right for right, verdict in verdicts.items() if verdict is Verdict.DENY}


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
            rights = NO_RIGHTS if role is None else rights_of(role, self.access.get(node) or self.access.get(EVERYBODY))
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
        return NO_RIGHTS if found is None else found.rights(node)

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


MAX_KEYS = 65_536  # about 16 MB


class RateBuckets:
    """The buckets of all keys under one rate."""

    def __init__(self, rate: Rate, max_keys: int = MAX_KEYS) -> None:
        self.rate = rate
        self._max_keys = max_keys
        self._buckets: dict[str, Bucket] = {}

    def take(self, key: str, now_ns: int, tokens: int = 1) -> int:
        """Take tokens; return 0, or the nanoseconds until they are there."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._max_keys:
                self._forget(now_ns)
            bucket = full_bucket(self.rate, now_ns)
        self._buckets[key], wait_ns = take(bucket, self.rate, now_ns, tokens)
        return wait_ns

    def give_back(self, key: str, tokens: int = 1) -> None:
        """Return tokens: what they were taken for had been paid before."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            level = min(bucket.level + tokens * SECOND_NS, self.rate.burst * SECOND_NS)
            self._buckets[key] = Bucket(level, bucket.at_ns)

    def __len__(self) -> int:
        return len(self._buckets)

    def _forget(self, now_ns: int) -> None:
        kept = {key: bucket for key, bucket in self._buckets.items() if not is_full(bucket, self.rate, now_ns)}
        if len(kept) > self._max_keys // 2:
            newest = sorted(kept.items(), key=lambda entry: entry[1].at_ns)[-(self._max_keys // 2) :]
            kept = dict(newest)
        self._buckets = kept


class Authorizer:
    """Decides whether an event may be written now."""

    def __init__(self, meshes: Meshes, clock: Clock, events: RateBuckets, ephemerals: RateBuckets) -> None:
        self._meshes = meshes
        self._clock = clock
        self._events = events
        self._ephemerals = ephemerals
        self._wall_ns = 0
        self._boot_ns = 0

    def begin(self) -> None:
        """Read the clocks for the jobs that follow at once."""
        self._wall_ns = self._clock.wall_ns()
        self._boot_ns = self._clock.boot_ns()

    def judge(self, job: Job) -> None:
        """Leave the refusal of a checked job in it, if there is one; else charge the sender."""
        row = job.row
        if row is None:
            return
        job.refusal = self._refusal(row)
        job.charged = job.refusal is None

    def give_back(self, job: Job) -> None:
        """Return what a job was charged: it was a retry."""
        if job.charged and job.row is not None:
            job.charged = False
            self._buckets(job.row).give_back(job.row.event.pubkey)

    def _refusal(self, row: EventRow) -> PosthouseError | None:
        event = row.event
        right = Right.READ if event.kind == CONFIRMATION else Right.WRITE
        refusal = self._meshes.missing(event.pubkey, row.mesh, right)
        if refusal is not None:
            return refusal
        if row.expiration_s is not None or event.created_at_ns > self._wall_ns + CREATED_AT_MAX_AHEAD_NS:
            try:
                check_times(event, self._wall_ns)
            except PosthouseError as late:
                return late
        return self._charge(row)

    def _charge(self, row: EventRow) -> PosthouseError | None:
        buckets = self._buckets(row)
        wait_ns = buckets.take(row.event.pubkey, self._boot_ns)
        if not wait_ns:
            return None
        wait_s = -(-wait_ns // (SECOND_NS // 1000)) / 1000
        return error("rate_limited", key=row.event.pubkey, rate=buckets.rate.per_s, retry_after_s=wait_s)

    def _buckets(self, row: EventRow) -> RateBuckets:
        return self._ephemerals if is_ephemeral(row.event.kind) else self._events
