"""Key rotations (events of kind 10001) and recovery keys (kind 10003): how a key names its successor.

Also the bodies of /v1/keys and /v1/meshes/{mesh}/rotations that relay and client share: what became of a key.

A rotation is signed by the key that it replaces, or by the recovery key that this key named in advance. It carries a
proof: a signature of the successor, so that no key can be made the successor of another without its owner. The relay
decides which rotation counts; reading validates the tags completely and proves nothing.

    proof = Ed25519 signature of the successor over the UTF-8 of ["posthouse-rotation-v1", NODE, SUCCESSOR], no spaces

A message that its sender had sealed before the rotation keeps its content and is signed again by the successor. Its
tag `sealed-by` names the key that sealed it, with a signature of that key, so that no other node can pass it on:

    ["sealed-by", NODE, Ed25519 signature of NODE over ["posthouse-resigned-v1", NODE, SUCCESSOR, SHA-256 of content]]

If you change the tags or the proof: 1. docs/protocol.md and its vectors, 2. a new version name in the proof.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import KEY_ROTATION, RECOVERY_KEY, Event, Tag
from posthouse.model.node import Role, is_node_id

ROTATION_VERSION = "posthouse-rotation-v1"
RESIGNED_VERSION = "posthouse-resigned-v1"
SEALED_BY = "sealed-by"


@dataclass(frozen=True, slots=True)
class Rotation:
    """The content of a rotation's tags."""

    #: the key that is replaced
    node: str
    successor: str
    #: the successor's signature over `proof_bytes`, in hexadecimal
    proof: str
    #: the author: the key itself, or its recovery key
    signer: str

    @property
    def is_recovery(self) -> bool:
        """True if the recovery key signed it, because the key itself is lost."""
        return self.signer != self.node


def proof_bytes(node: str, successor: str) -> bytes:
    """Return what the successor signs."""
    return msgspec.json.encode((ROTATION_VERSION, node, successor))


def resigned_bytes(node: str, successor: str, content: str) -> bytes:
    """Return the bytes that a key signs so that its successor may sign a message that it has sealed."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    return msgspec.json.encode((RESIGNED_VERSION, node, successor, digest))


def rotation_tags(node: str, successor: str, proof: str, signer: str) -> list[Tag]:
    """Return the tags of a rotation that `signer` signs."""
    tags: list[Tag] = [("successor", successor), ("proof", proof)]
    return tags if signer == node else [("node", node), *tags]


def read_rotation(event: Event) -> Rotation:
    """Return the rotation in an event of kind 10001, or raise rotation_malformed."""
    if event.kind != KEY_ROTATION:
        raise _malformed(f"its kind is {event.kind}, not {KEY_ROTATION}")
    node, successor, proof = (_single(event, name) for name in ("node", "successor", "proof"))
    if successor is None or not is_node_id(successor):
        raise _malformed("it needs one successor tag with a node id")
    if proof is None:
        raise _malformed("it needs one proof tag")
    if node is not None and not is_node_id(node):
        raise _malformed("its node tag is not a node id")
    rotation = Rotation(node or event.pubkey, successor, proof, event.pubkey)
    if successor in (rotation.node, rotation.signer):
        raise _malformed("the successor is the key itself or its recovery key")
    return rotation


def read_recovery_key(event: Event) -> str:
    """Return the recovery key that an event of kind 10003 names, or raise rotation_malformed."""
    recovery = _single(event, "recovery")
    if event.kind != RECOVERY_KEY or recovery is None or not is_node_id(recovery) or recovery == event.pubkey:
        raise _malformed(f"kind {RECOVERY_KEY} needs one recovery tag with the node id of another key")
    return recovery


def _single(event: Event, name: str) -> str | None:
    tags = [tag for tag in event.tags if tag[0] == name]
    if not tags:
        return None
    if len(tags) > 1 or len(tags[0]) != 2:
        raise _malformed(f"it has more than one {name} tag, or one without exactly one value")
    return tags[0][1]


def _malformed(reason: str) -> PosthouseError:
    return error("rotation_malformed", reason=reason)


class KeyEnd(enum.StrEnum):
    """Why a key must no longer be used."""

    #: its owner rotated it
    ROTATED = "rotated"
    #: its recovery key rotated it
    RECOVERED = "recovered"
    #: an admin of the relay gave its place to another key, without a signature of its owner
    REPLACED = "replaced"
    #: an admin of the relay revoked it
    REVOKED = "revoked"


class KeyChange(msgspec.Struct, frozen=True):
    """The end of a key."""

    node: str
    reason: KeyEnd
    #: the key that took its place; None: it was revoked
    successor: str | None
    #: the key itself, its recovery key, or the admin of the relay that ended it
    actor: str
    at_ns: int
    #: events that it signed from then on are marked; None: none are
    suspect_from_ns: int | None
    #: the signed rotation; None: an admin ended the key, so only the relay says so
    event: Event | None
    #: of a recovered key: the event of kind 10003 in which it had named its recovery key
    naming_event: Event | None


class KeyChain(msgspec.Struct, frozen=True):
    """A key, its latest successor, and every change from its first predecessor to that successor."""

    node: str
    #: None: the last key of the chain was revoked
    current: str | None
    changes: tuple[KeyChange, ...]

    def links_from(self, node: str) -> list[KeyChange]:
        """Return the changes that lead from a key of the chain to its end."""
        by_node = {change.node: change for change in self.changes}
        links: list[KeyChange] = []
        while (change := by_node.get(node)) is not None and change.successor is not None and change not in links:
            links.append(change)
            node = change.successor
        return links


class HeldMember(msgspec.Struct, frozen=True):
    """A member whose new key waits for approval; it has no right in the mesh until then."""

    #: the new key
    node: str
    #: the last key of this member that needed no approval, or had it
    former: str
    name: str
    role: Role
    at_ns: int


class KeyApprovals(msgspec.Struct, frozen=True):
    """Whether an admin of the mesh has to approve new keys of members, and the keys that wait now, oldest first."""

    required: bool
    waiting: list[HeldMember]
