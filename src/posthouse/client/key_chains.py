"""Keys over HTTP: rotate and recover a key, read its chain of successors; for admins replace, revoke or approve one.

A chain leads from a key to its current successor. The client verifies every link that a key of the chain
signed, so a relay cannot invent a rotation. A link that an admin of the relay made has no such signature: it is shown
as a replacement, and pins do not follow it.
"""

from __future__ import annotations

from collections.abc import Callable

from posthouse.client.transport import Requests
from posthouse.client.trust.signing import Signer, sign_event
from posthouse.keys import NodeKey, verify
from posthouse.model.errors import PosthouseError
from posthouse.model.event import KEY_ROTATION, Event, check_structure
from posthouse.model.node import validate_mesh_name
from posthouse.model.rotation import (
    KeyApprovals,
    KeyChain,
    KeyChange,
    proof_bytes,
    read_recovery_key,
    read_rotation,
    rotation_tags,
)


class Keys:
    """The keys of a relay's members, as this node may see and change them."""

    def __init__(self, requests: Requests, signer: Signer, now_ns: Callable[[], int]) -> None:
        self._requests = requests
        self._signer = signer
        self._now_ns = now_ns

    async def rotate(self, successor: NodeKey) -> KeyChange:
        """Replace this node's key with another one of the same owner; the old one has no right afterwards.

        The call can be repeated: the relay gives the same answer again. Raises already_rotated if the key has another
        successor.
        """
        return await self.recover(self._signer.key.node, successor)

    async def recover(self, node: str, successor: NodeKey) -> KeyChange:
        """Replace a lost key that had named this node's key as its recovery key."""
        event = sign_rotation(self._signer.key, node, successor, self._now_ns())
        return await self._requests.send_anonymous(KeyChange, "POST", "/v1/keys/rotations", {"event": event})

    async def chain(self, node: str) -> KeyChain:
        """Return what became of a key."""
        return await self._requests.get_as(KeyChain, "/v1/keys", {"node": node})

    async def have_same_owner(self, node: str, other: str) -> bool:
        """Return True if signatures lead from one of two keys to the other."""
        chain = await self.chain(node)
        return is_proven(chain, node, other) or is_proven(chain, other, node)

    async def replace(self, node: str, successor: str) -> KeyChange:
        """Replace a lost key with another one; only for admins of the relay."""
        body = {"node": node, "successor": successor}
        return await self._requests.post_as(KeyChange, "/v1/keys/replacements", body)

    async def revoke(self, node: str, suspect_from_ns: int | None = None) -> KeyChange:
        """Refuse a key everywhere, and mark events it signed since a time (default: now); only for relay admins."""
        body = {"node": node} | ({} if suspect_from_ns is None else {"suspect_from_ns": suspect_from_ns})
        return await self._requests.post_as(KeyChange, "/v1/keys/revocations", body)

    async def held(self, mesh: str) -> KeyApprovals:
        """Return the new keys of members that wait for approval; only for admins of the mesh."""
        return await self._requests.get_as(KeyApprovals, _held_path(mesh))

    async def require_approval(self, mesh: str, is_required: bool) -> KeyApprovals:
        """Choose whether new keys of members need the approval of an admin before they have any right in a mesh."""
        return await self._requests.post_as(KeyApprovals, f"{_held_path(mesh)}/approval", {"required": is_required})

    async def approve(self, mesh: str, node: str) -> KeyApprovals:
        """Give the new key of a member its rights."""
        return await self._requests.post_as(KeyApprovals, _held_path(mesh), {"node": node, "decision": "approve"})

    async def refuse(self, mesh: str, node: str) -> KeyApprovals:
        """Remove a member whose new key waits, and deny that key everything in the mesh."""
        return await self._requests.post_as(KeyApprovals, _held_path(mesh), {"node": node, "decision": "refuse"})


def _held_path(mesh: str) -> str:
    return f"/v1/meshes/{validate_mesh_name(mesh)}/rotations"


def sign_rotation(signer: NodeKey, node: str, successor: NodeKey, created_at_ns: int) -> Event:
    """Return the event that replaces a key; `signer` is the key itself or its recovery key."""
    proof = successor.sign(proof_bytes(node, successor.node)).hex()
    return sign_event(signer, KEY_ROTATION, "", rotation_tags(node, successor.node, proof, signer.node), created_at_ns)


def is_proven(chain: KeyChain, node: str, successor: str) -> bool:
    """Return True if signatures of the owner lead from a key to another key."""
    for change in chain.links_from(node):
        if not _is_signed(change):
            return False
        if change.successor == successor:
            return True
    return False


def _is_signed(change: KeyChange) -> bool:
    """Return True if the key itself, or the recovery key that it had named, signed that it has this successor."""
    if change.event is None:
        return False
    try:
        rotation = read_rotation(change.event)
        verify(change.event.pubkey, check_structure(change.event), change.event.sig)
        verify(rotation.successor, proof_bytes(rotation.node, rotation.successor), rotation.proof)
        if (rotation.node, rotation.successor) != (change.node, change.successor):
            return False
        if not rotation.is_recovery:
            return True
        naming = change.naming_event
        if naming is None or naming.pubkey != change.node:
            return False
        verify(naming.pubkey, check_structure(naming), naming.sig)
        return read_recovery_key(naming) == rotation.signer
    except PosthouseError:
        return False
