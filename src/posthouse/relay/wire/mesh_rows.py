"""Rows of meshes as a store keeps them; plain values without rules."""

from __future__ import annotations

import enum

import msgspec

from posthouse.model.fence_rules import FenceRule
from posthouse.model.mesh_limits import MeshLimits
from posthouse.model.node import Role
from posthouse.model.rotation import KeyEnd

ALL_NODES = "*"


class Verdict(enum.StrEnum):
    """The verdict of an access row about one right; it can only take rights away."""

    ALLOW = "allow"
    DENY = "deny"


class MeshState(enum.StrEnum):
    """Whether a mesh can be used."""

    ACTIVE = "active"
    #: no node may use it until an admin of the relay resumes it
    SUSPENDED = "suspended"
    #: forever; its name stays taken
    DELETED = "deleted"


class LimitSource(enum.StrEnum):
    """The origin of a set of limits of a mesh."""

    #: by its admins
    MESH = "mesh"
    #: by admins of the relay: more is not allowed
    RELAY = "relay"


class MeshRow(msgspec.Struct, frozen=True):
    """A mesh."""

    mesh: str
    #: every key that authenticates is a member
    is_open: bool
    creator: str
    created_at_ns: int
    state: MeshState = MeshState.ACTIVE
    #: a member whose key changes has no rights here until an admin approves its new key
    approves_keys: bool = False


class MemberRow(msgspec.Struct, frozen=True):
    """A member of a mesh; its name is unique in the mesh."""

    mesh: str
    node: str
    name: str
    role: Role


class AccessRow(msgspec.Struct, frozen=True):
    """Rights that are denied to a node, or to all nodes without their own row."""

    mesh: str
    #: a node id, or `*`
    node: str
    read: Verdict = Verdict.ALLOW
    write: Verdict = Verdict.ALLOW
    lock: Verdict = Verdict.ALLOW


class InviteRow(msgspec.Struct, frozen=True):
    """An invite; the store keeps only a hash of its code."""

    invite_id: str
    code_hash: bytes
    mesh: str
    role: Role
    uses_left: int
    #: 0: it was revoked
    expires_at_ns: int
    creator: str


class TopicRow(msgspec.Struct, frozen=True):
    """A topic of a mesh."""

    mesh: str
    topic: str
    creator: str


class LimitsRow(msgspec.Struct, frozen=True):
    """One set of limits of a mesh."""

    mesh: str
    source: LimitSource
    limits: MeshLimits


class RetiredKey(msgspec.Struct, frozen=True):
    """A key that may no longer be used."""

    node: str
    reason: KeyEnd
    #: its successor; None: it was revoked
    successor: str | None
    #: the node that ended it
    actor: str
    at_ns: int
    #: events that it signed or the relay accepted from then on are marked; None: none are
    suspect_from_ns: int | None = None
    #: the last seq before that time
    suspect_after_seq: int | None = None
    #: the signed rotation as JSON; None: an admin ended it
    event: str | None = None
    #: of a recovered key: the event as JSON in which it had named its recovery key
    naming_event: str | None = None

    def marks(self, created_at_ns: int, seq: int | None) -> bool:
        """Return True if an event of this key is suspect; without a seq it is new."""
        if self.suspect_from_ns is None or self.suspect_after_seq is None:
            return False
        return created_at_ns >= self.suspect_from_ns or seq is None or seq > self.suspect_after_seq


class HeldKey(msgspec.Struct, frozen=True):
    """A member whose key changed, and whose new key waits for the approval of an admin of the mesh."""

    mesh: str
    #: the new key
    node: str
    #: the last key of the member that needed no approval, or had it
    former: str
    #: when the new key took its place
    at_ns: int


class MeshRows(msgspec.Struct, frozen=True):
    """Meshes with their members, access rows, topics, subscriptions, blocks, fence rules and limits."""

    meshes: list[MeshRow]
    members: list[MemberRow]
    access: list[AccessRow]
    topics: list[TopicRow]
    #: (mesh, node, pattern)
    subscriptions: list[tuple[str, str, str]]
    #: (mesh, node, the node it blocks)
    blocks: list[tuple[str, str, str]]
    #: (mesh, rule); snapshots of older versions have none
    fence_rules: list[tuple[str, FenceRule]] = []
    limits: list[LimitsRow] = []
    #: of the whole relay
    retired_keys: list[RetiredKey] = []
    held_keys: list[HeldKey] = []
