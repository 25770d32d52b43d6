"""Rows of meshes as a store keeps them; plain values without rules."""

from __future__ import annotations

import enum

import msgspec

from posthouse.model.fence_rules import FenceRule

ALL_NODES = "*"


class Role(enum.StrEnum):
    """The role of a member, the least powerful first."""

    READER = "reader"
    MEMBER = "member"
    ADMIN = "admin"


class Verdict(enum.StrEnum):
    """The verdict of an access row about one right; it can only take rights away."""

    ALLOW = "allow"
    DENY = "deny"


class MeshRow(msgspec.Struct, frozen=True):
    """A mesh."""

    mesh: str
    #: every key that authenticates is a member
    is_open: bool
    creator: str
    created_at_ns: int


class MemberRow(msgspec.Struct, frozen=True):
    """A member of a mesh; its name is unique in the mesh."""

    mesh: str
    node: str
    name: str
    role: Role


class AccessRow(msgspec.Struct, frozen=True):
    """Rights that are denied to a node, or to all nodes without a row of their own."""

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


class MeshRows(msgspec.Struct, frozen=True):
    """Meshes with their members, access rows, topics, subscriptions, blocks and fence rules."""

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
