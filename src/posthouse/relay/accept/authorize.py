"""Authorize: the rights of nodes in meshes, their rates, and the stage that applies both to an event.

A role gives rights and access rows take some away; the right to administer cannot be taken away, so a mesh always
has an admin who can repair it. The registry holds all meshes in memory as committed and changes only after a commit,
on the event loop. Rates are token buckets per key in boot time, within bounded memory. A refusal is not final: an
event whose id is known gets its first answer again and costs no rate; only the transaction knows the ids, so the
refusal travels there with the event.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import READER_KINDS, RESERVED_KINDS, Event, check_times
from posthouse.model.fence_rules import FenceRule, missing_fence
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS, MILLISECOND_NS, SECOND_NS
from posthouse.model.node import name_skeleton
from posthouse.model.rate import Bucket, Rate, full_bucket, is_full, take
from posthouse.relay.accept.submission import Job
from posthouse.relay.store.event_rows import EventRow
from posthouse.relay.wire.mesh_rows import ALL_NODES, AccessRow, MemberRow, MeshRow, MeshRows, Role, Verdict


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


_CACHED_NODES = 65_536  # of one cache: any key may ask


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
    _rights: dict[str, Rights] = field(default_factory=dict)

    def role(self, node: str) -> Role | None:
        """Return the role of a node, or None if it is not a member."""
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
        role = self.role(node)
        return NO_RIGHTS if role is None else rights_of(role, self.access.get(node) or self.access.get(ALL_NODES))

    def admins(self) -> list[str]:
        """Return the nodes that administer this mesh."""
        return [member.node for member in self.members.values() if member.role is Role.ADMIN]

    def put_member(self, row: MemberRow) -> None:
        """Add a member, or change it."""
        self._drop_name(row.node)
        self.members[row.node] = row
        self.names[row.name] = row.node
        self.alike[name_skeleton(row.name)].add(row.name)
        self.clear_rights()

    def drop_member(self, node: str) -> None:
        """Remove a member with its subscriptions."""
        self._drop_name(node)
        self.members.pop(node, None)
        self.subscriptions.pop(node, None)
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

    def clear_rights(self) -> None:
        """Clear the cache of rights, after a change that rights depend on, and let the watchers look again."""
        self._rights.clear()
        self.on_rights_changed()


class Meshes:
    """All meshes of a relay, as committed."""

    def __init__(self, rows: MeshRows) -> None:
        self._watchers: dict[Callable[[str], None], None] = {}
        #: answers of `has_member`, until a mesh changes
        self._has_member: dict[str, bool] = {}
        self._meshes = {row.mesh: self._watched(row) for row in rows.meshes}
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
        for mesh, rule in rows.fence_rules:
            self._meshes[mesh].fence_rules[rule.kind, rule.d_prefix] = rule

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
            raise error("mesh_unknown", mesh=mesh)
        return found

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

    def _watched(self, row: MeshRow) -> Mesh:
        return Mesh(row, on_rights_changed=partial(self._notify, row.mesh))

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

    def early_error(self, node: str, mesh: str, right: Right) -> PosthouseError | None:
        """Do the same on any thread; the answer may be as old as the call."""
        found = self._meshes.get(mesh)
        if found is not None and right in found.find_rights(node):
            return None
        return self._missing_right(found, node, mesh, right)

    def _missing_right(self, found: Mesh | None, node: str, mesh: str, right: Right) -> PosthouseError:
        if found is None:
            return error("mesh_unknown", mesh=mesh)
        if found.role(node) is None:
            return error("not_member", node=node, mesh=mesh)
        return error("right_missing", node=node, mesh=mesh, right=right.value)

    def require(self, node: str, mesh: str, right: Right) -> Mesh:
        """Return the mesh, or raise why the node lacks a right in it."""
        refusal = self.authorization_error(node, mesh, right)
        if refusal is not None:
            raise refusal
        return self._meshes[mesh]

    def readable(self, node: str) -> frozenset[str] | None:
        """Return the meshes that a node may read; None means all."""
        names = frozenset(name for name, mesh in self._meshes.items() if Right.READ in mesh.rights(node))
        return None if len(names) == len(self._meshes) else names


MAX_KEYS = 65_536  # about 16 MB


class RateBuckets:
    """The token buckets of all keys under one rate."""

    def __init__(self, rate: Rate, max_keys: int = MAX_KEYS) -> None:
        self.rate = rate
        self._max_keys = max_keys
        self._buckets: dict[str, Bucket] = {}

    def take(self, key: str, now_ns: int, tokens: int = 1) -> int:
        """Take tokens and return 0, or return the nanoseconds until there are enough."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= self._max_keys:
                self._drop_full(now_ns)
            bucket = full_bucket(self.rate, now_ns)
        self._buckets[key], wait_ns = take(bucket, self.rate, now_ns, tokens)
        return wait_ns

    def wait_ns(self, key: str, now_ns: int) -> int:
        """Return the nanoseconds until a key has a token, without taking it."""
        bucket = self._buckets.get(key)
        return 0 if bucket is None else take(bucket, self.rate, now_ns)[1]

    def give_back(self, key: str, tokens: int = 1) -> None:
        """Give tokens back: their event turned out to be free."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            level = min(bucket.level + tokens * SECOND_NS, self.rate.burst * SECOND_NS)
            self._buckets[key] = Bucket(level, bucket.at_ns)

    def __len__(self) -> int:
        return len(self._buckets)

    def _drop_full(self, now_ns: int) -> None:
        kept = {key: bucket for key, bucket in self._buckets.items() if not is_full(bucket, self.rate, now_ns)}
        if len(kept) > self._max_keys // 2:
            newest = sorted(kept.items(), key=lambda entry: entry[1].at_ns)[-(self._max_keys // 2) :]
            kept = dict(newest)
        self._buckets = kept


STRANGER_RATE = Rate(20, 500)  # refused events and logins of one address: a mistake is forgiven, a flood is not
_STRANGER_CODES = frozenset({"not_member", "right_missing", "mesh_unknown", "signature_invalid"})


class Strangers:
    """Charges an address, or an authenticated node, for what keys without rights make the relay do."""

    def __init__(self, clock: Clock, rate: Rate = STRANGER_RATE) -> None:
        self._clock = clock
        self._buckets = RateBuckets(rate)

    def check(self, payer: str | None) -> None:
        """Raise stranger_rate_exceeded if a payer has nothing left."""
        wait_ns = 0 if payer is None else self._buckets.wait_ns(payer, self._clock.boot_ns())
        if wait_ns:
            wait_s = -(-wait_ns // MILLISECOND_NS) / 1000
            raise error("stranger_rate_exceeded", payer=payer, rate=self._buckets.rate.per_s, retry_after_s=wait_s)

    def charge(self, payer: str | None) -> None:
        """Take a token of a payer, if it has one."""
        if payer is not None:
            self._buckets.take(payer, self._clock.boot_ns())

    def give_back(self, payer: str | None) -> None:
        """Give a token back, because the key turned out to have rights."""
        if payer is not None:
            self._buckets.give_back(payer)


class Authorizer:
    """Decides whether events may be written now, and charges the rate of their senders."""

    def __init__(self, meshes: Meshes, clock: Clock, events: RateBuckets, ephemerals: RateBuckets) -> None:
        self.strangers = Strangers(clock)
        self._meshes = meshes
        self._clock = clock
        self._events = events
        self._ephemerals = ephemerals

    def set_rates(self, events: Rate, ephemerals: Rate) -> None:
        """Apply other rates from now on."""
        self._events.rate, self._ephemerals.rate = events, ephemerals

    def authorize(self, jobs: Sequence[Job]) -> None:
        """Set the refusal of each verified job that may not be written; charge the sender for the others."""
        wall_ns, boot_ns = self._clock.wall_ns(), self._clock.boot_ns()
        for job in jobs:
            row = job.row
            if row is None:
                if job.refusal is not None and job.refusal.code in _STRANGER_CODES:
                    self.strangers.charge(job.submission.submitter.payer)
            else:
                job.refusal = (
                    self._right_error(row)
                    or _kind_error(row)
                    or _time_error(row, wall_ns)
                    or self._fence_rule_error(row)
                    or self._charge(row, boot_ns)
                )
                job.is_charged = job.refusal is None

    def early_error(self, event: Event) -> PosthouseError | None:
        """Return why the author that an event claims may not write it, before the signature proves the author.

        Verifier threads call it, so it reads the registry and caches nothing; `authorize` has the last word.
        """
        return self._meshes.early_error(event.pubkey, event.mesh, _right_for(event.kind))

    def give_back(self, job: Job) -> None:
        """Return the token of a job that turned out to be free, such as a retry."""
        if job.is_charged and job.row is not None:
            job.is_charged = False
            self._buckets(job.row).give_back(job.row.event.pubkey)

    def _right_error(self, row: EventRow) -> PosthouseError | None:
        return self._meshes.authorization_error(row.event.pubkey, row.mesh, _right_for(row.event.kind))

    def _fence_rule_error(self, row: EventRow) -> PosthouseError | None:
        """Return which fence a rule of the mesh demands of an event that does not name it, or None."""
        if row.address is None:
            return None
        rules = self._meshes.find(row.mesh).fence_rules
        resource = missing_fence(rules.values(), row.event.kind, row.event.d, row.fence) if rules else None
        return None if resource is None else error("fence_required", mesh=row.mesh, resource=resource)

    def _charge(self, row: EventRow, boot_ns: int) -> PosthouseError | None:
        buckets = self._buckets(row)
        wait_ns = buckets.take(row.event.pubkey, boot_ns)
        if not wait_ns:
            return None
        wait_s = -(-wait_ns // MILLISECOND_NS) / 1000
        return error("rate_limited", key=row.event.pubkey, rate=buckets.rate.per_s, retry_after_s=wait_s)

    def _buckets(self, row: EventRow) -> RateBuckets:
        return self._ephemerals if row.is_ephemeral else self._events


def _kind_error(row: EventRow) -> PosthouseError | None:
    kind = row.event.kind
    meaning = RESERVED_KINDS.get(kind)
    return None if meaning is None else error("kind_reserved", kind=kind, meaning=meaning)


def _right_for(kind: int) -> Right:
    return Right.READ if kind in READER_KINDS else Right.WRITE


def _time_error(row: EventRow, wall_ns: int) -> PosthouseError | None:
    """Return why an event is too early or has expired, or None."""
    if row.expiration_s is None and row.event.created_at_ns <= wall_ns + CREATED_AT_MAX_AHEAD_NS:
        return None
    try:
        check_times(row.event, wall_ns)
    except PosthouseError as failure:
        return failure
    return None
