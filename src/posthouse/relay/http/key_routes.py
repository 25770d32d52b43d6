"""/v1/keys: rotate a key, read its chain of successors, replace a lost one, revoke a stolen one.

A rotation needs no token: it is signed, and a lost token must not keep a key from being replaced. Members may read
chains; only admins of the relay may replace and revoke keys. Admins of a mesh decide which new keys of its members have
rights.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model.event import Event
from posthouse.model.limits import INT64_MAX
from posthouse.model.rotation import HeldMember, KeyApprovals, KeyChain, KeyChange
from posthouse.relay.context import RelayCall
from posthouse.relay.http.schemas import NODE_ID
from posthouse.relay.wire.mesh_rows import RetiredKey


class RotationBody(msgspec.Struct, forbid_unknown_fields=True):
    """A signed event of kind 10001 with ["successor", node] and ["proof", signature of the successor]."""

    event: Event


class KeyQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A key."""

    node: Annotated[str, NODE_ID]


class ReplacementRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A lost or revoked key, and the new key of the same owner."""

    node: Annotated[str, NODE_ID]
    successor: Annotated[str, NODE_ID]


class RevocationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A key to refuse, and since when it is not trusted."""

    node: Annotated[str, NODE_ID]
    suspect_from_ns: (
        Annotated[int, Meta(description="Mark what it signed from then on. Default: now.", ge=0, le=INT64_MAX)] | None
    ) = None


class Decision(enum.StrEnum):
    """What becomes of a new key."""

    #: it has the rights of its member from now on
    APPROVE = "approve"
    #: the member is removed, and the key is denied everything in the mesh
    REFUSE = "refuse"


class DecisionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A new key that waits, and the decision about it."""

    node: Annotated[str, NODE_ID]
    decision: Decision


class ApprovalRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Whether new keys of members have no right in the mesh until an admin approves them."""

    required: bool


_decode_event = msgspec.json.Decoder(Event).decode


def _change(row: RetiredKey) -> KeyChange:
    events = [None if each is None else _decode_event(each) for each in (row.event, row.naming_event)]
    return KeyChange(row.node, row.reason, row.successor, row.actor, row.at_ns, row.suspect_from_ns, *events)


async def rotate_key(call: RelayCall) -> HttpResponse:
    """Replace a key by the successor that it names."""
    body = await call.body(RotationBody)
    call.charge_join()
    raw = msgspec.json.encode(body.event)
    signed = await call.context.engine.verify(raw)
    return json_response(_change(await call.context.engine.key_changes.rotate(signed, raw)))


async def read_chain(call: RelayCall) -> HttpResponse:
    """Return what became of a key."""
    _ = call.node
    node, engine = call.arguments(KeyQuery).node, call.context.engine
    engine.require_current()
    current, changes = engine.meshes.successor(node), engine.key_changes.history(node)
    is_revoked = current in engine.meshes.retired
    return json_response(KeyChain(node, None if is_revoked else current, tuple(_change(row) for row in changes)))


async def replace_key(call: RelayCall) -> HttpResponse:
    """Give the place of a lost key to another key."""
    actor, body = call.node, await call.body(ReplacementRequest)
    call.context.engine.require_admin(actor)
    return json_response(_change(await call.context.engine.key_changes.replace(actor, body.node, body.successor)))


async def revoke_key(call: RelayCall) -> HttpResponse:
    """Refuse a key everywhere, and mark events that it signed since a time."""
    actor, body = call.node, await call.body(RevocationRequest)
    call.context.engine.require_admin(actor)
    return json_response(_change(await call.context.engine.key_changes.revoke(actor, body.node, body.suspect_from_ns)))


def _held_keys(call: RelayCall) -> HttpResponse:
    mesh, waiting = call.context.engine.approvals.waiting(call.node, call.params["mesh"])
    rows = [HeldMember(held.node, held.former, member.name, member.role, held.at_ns) for held, member in waiting]
    return json_response(KeyApprovals(mesh.approves_keys, rows))


async def list_held_keys(call: RelayCall) -> HttpResponse:
    """List the new keys that wait for approval."""
    return _held_keys(call)


async def decide_held_key(call: RelayCall) -> HttpResponse:
    """Approve or refuse the new key of a member."""
    actor, body = call.node, await call.body(DecisionRequest)
    approvals = call.context.engine.approvals
    decide = approvals.approve if body.decision is Decision.APPROVE else approvals.refuse
    await decide(actor, call.params["mesh"], body.node)
    return _held_keys(call)


async def require_approval(call: RelayCall) -> HttpResponse:
    """Start or stop demanding that an admin approves new keys of members."""
    actor, body = call.node, await call.body(ApprovalRequest)
    await call.context.engine.approvals.require(actor, call.params["mesh"], is_required=body.required)
    return _held_keys(call)


KEY_ROUTES = (
    Route(
        "GET",
        "/v1/meshes/{mesh}/rotations",
        list_held_keys,
        "List new keys that wait for approval (administrators)",
        responses={200: KeyApprovals},
    ),
    Route(
        "POST",
        "/v1/meshes/{mesh}/rotations",
        decide_held_key,
        "Approve or refuse a new key (administrators)",
        bodies=(DecisionRequest,),
        responses={200: KeyApprovals},
    ),
    Route(
        "POST",
        "/v1/meshes/{mesh}/rotations/approval",
        require_approval,
        "Demand approval of new keys (administrators)",
        bodies=(ApprovalRequest,),
        responses={200: KeyApprovals},
    ),
    Route("GET", "/v1/keys", read_chain, "Read what became of a key", query=KeyQuery, responses={200: KeyChain}),
    Route(
        "POST",
        "/v1/keys/rotations",
        rotate_key,
        "Replace a key by its successor",
        is_public=True,
        bodies=(RotationBody,),
        responses={200: KeyChange},
    ),
    Route(
        "POST",
        "/v1/keys/replacements",
        replace_key,
        "Replace a lost key (administrators of the relay)",
        bodies=(ReplacementRequest,),
        responses={200: KeyChange},
    ),
    Route(
        "POST",
        "/v1/keys/revocations",
        revoke_key,
        "Revoke a key (administrators of the relay)",
        bodies=(RevocationRequest,),
        responses={200: KeyChange},
    ),
)
