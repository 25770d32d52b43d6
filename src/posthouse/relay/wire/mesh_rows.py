"""Rows of meshes as a store keeps them; plain values without rules."""

from __future__ import annotations

import enum

import msgspec

ALL_NODES = "*"


class Role(enum.StrEnum):
    """What a member may do, least first."""

    READER = "reader"
    MEMBER = "member"
    ADMIN = "admin"


class Verdict(enum.StrEnum):
    """What an access row says about one right; it can only take away."""

    ALLOW = "allow"
    DENY = "deny"


class MeshRow(msgspec.Struct, frozen=True):
    """A mesh."""

    mesh: str
    #: any key that authenticates is a member
    is_open: bool
    creator: str
    created_at_ns: int


class MemberRow(msgspec.Struct, frozen=True):
    """A node listed in a mesh; names are unique there."""

    mesh: str
    node: str
    name: str
    role: Role


class AccessRow(msgspec.Struct, frozen=True):
    """What is taken from a node, or from everybody without a row of their own."""

    mesh: str
    #: a node id, or `*`
    node: str
    read: Verdict = Verdict.ALLOW
    write: Verdict = Verdict.ALLOW
    lock: Verdict = Verdict.ALLOW


class InviteRow(msgspec.Struct, frozen=True):
    """An invite; its code is known to who holds it, not to the store."""

    invite_id: str
    code_hash: bytes
    mesh: str
    role: Role
    uses_left: int
    expires_at_ns: int
    creator: str


class TopicRow(msgspec.Struct, frozen=True):
    """A topic of a mesh."""

    mesh: str
    topic: str
    creator: str


class MeshRows(msgspec.Struct, frozen=True):
    """Everything a store knows of its meshes."""

    meshes: list[MeshRow]
    members: list[MemberRow]
    access: list[AccessRow]
    topics: list[TopicRow]
    #: (mesh, node, pattern)
    subscriptions: list[tuple[str, str, str]]
    #: (mesh, node, the node it blocks)
    blocks: list[tuple[str, str, str]]
