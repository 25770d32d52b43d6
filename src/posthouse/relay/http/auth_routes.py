"""/v1/auth, /v1/meshes/{mesh}/invites and /v1/join: authenticate a key, manage invites, join a mesh with one.

A key proves itself by signing a challenge of this relay and gets a token. A join needs no token: its signed event
names the relay and the invite, so no other relay can redeem the invite with it.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, quote, urlsplit

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.keys import public_key
from posthouse.model.api import ActiveInvite, InviteList
from posthouse.model.errors import error
from posthouse.model.event import Event
from posthouse.model.limits import DAY_S
from posthouse.model.node import Role
from posthouse.relay.auth import read_proof
from posthouse.relay.context import RelayCall, check_key, prove_challenge
from posthouse.relay.http.schemas import NODE_ID, Done
from posthouse.relay.listen import advertised
from posthouse.relay.meshes.invites import MAX_EXPIRES_S, MAX_USES


class ChallengeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The key that wants to authenticate."""

    pubkey: Annotated[str, NODE_ID]


async def issue_challenge(call: RelayCall) -> HttpResponse:
    """Issue a challenge to a key; it can be answered once, within a minute."""
    node = (await call.body(ChallengeRequest)).pubkey
    public_key(node)
    challenge = call.context.challenges.issue(node)
    return json_response(ChallengeAnswer(challenge.text, call.context.relay, challenge.expires_at_ns))


class ChallengeAnswer(msgspec.Struct):
    """The proof to sign: kind 22242 with ["relay", relay] and ["challenge", challenge]."""

    challenge: str
    relay: str
    expires_at_ns: int


class ProofBody(msgspec.Struct, forbid_unknown_fields=True):
    """A signed event of kind 22242."""

    event: Event


class TokenAnswer(msgspec.Struct):
    """A token; send it as `Authorization: Bearer TOKEN`."""

    token: str
    expires_at_ns: int


async def authenticate(call: RelayCall) -> HttpResponse:
    """Issue a token to the key that answered a challenge."""
    event = (await call.body(ProofBody)).event
    node = await prove_challenge(call.context, msgspec.json.encode(event), call.address)
    token = call.context.tokens.issue(node)
    return json_response(TokenAnswer(token.text, token.expires_at_ns))


AUTH_ROUTES = (
    Route(
        "POST",
        "/v1/auth/challenge",
        issue_challenge,
        "Request a challenge",
        is_public=True,
        bodies=(ChallengeRequest,),
        responses={200: ChallengeAnswer},
    ),
    Route(
        "POST",
        "/v1/auth",
        authenticate,
        "Answer a challenge with a signed event",
        is_public=True,
        bodies=(ProofBody,),
        responses={200: TokenAnswer},
    ),
)


class InviteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How often and how long an invite can be used, and the role that it gives."""

    uses: Annotated[int, Meta(ge=1, le=MAX_USES)] = 1
    expires_s: Annotated[int, Meta(ge=1, le=MAX_EXPIRES_S)] = DAY_S
    role: Role = Role.MEMBER


class InviteBody(msgspec.Struct):
    """An invite: posthouse://HOST:PORT/MESH?relay=NODE_ID&code=CODE."""

    invite: str
    expires_at_ns: int
    #: names the invite when it is listed or revoked; not a secret
    id: str


class InviteQuery(msgspec.Struct, forbid_unknown_fields=True):
    """An invite."""

    id: Annotated[str, Meta(description="The id of an invite.", max_length=64)]


async def create_invite(call: RelayCall) -> HttpResponse:
    """Create an invite."""
    node = call.node
    body = await call.body(InviteRequest)
    invite = await call.context.engine.invites.create(
        node, call.params["mesh"], uses=body.uses, expires_s=body.expires_s, role=body.role
    )
    host = advertised(call.context.address, call.request.headers.get("Host"))
    relay, code = quote(call.context.relay, safe=":"), quote(invite.code, safe="")
    return json_response(
        InviteBody(
            f"posthouse://{host}/{invite.mesh}?relay={relay}&code={code}", invite.expires_at_ns, invite.invite_id
        ),
        201,
    )


async def list_invites(call: RelayCall) -> HttpResponse:
    """List the invites that can be used."""
    rows = await call.context.engine.invites.active(call.node, call.params["mesh"])
    active = [ActiveInvite(row.invite_id, row.role, row.uses_left, row.expires_at_ns, row.creator) for row in rows]
    return json_response(InviteList(active))


async def revoke_invite(call: RelayCall) -> HttpResponse:
    """Revoke an invite."""
    await call.context.engine.invites.revoke(call.node, call.params["mesh"], call.arguments(InviteQuery).id)
    return json_response(Done())


_INVITES_PATH = "/v1/meshes/{mesh}/invites"
INVITE_ROUTES = (
    Route("GET", _INVITES_PATH, list_invites, "List usable invites (admins of the mesh)", responses={200: InviteList}),
    Route(
        "POST",
        _INVITES_PATH,
        create_invite,
        "Create an invite",
        bodies=(InviteRequest,),
        responses={201: InviteBody},
    ),
    Route(
        "DELETE",
        _INVITES_PATH,
        revoke_invite,
        "Revoke an invite (admins of the mesh)",
        query=InviteQuery,
        responses={200: Done},
    ),
)


class JoinRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An invite, and kind 22242 with ["relay", relay], ["invite", code] and ["name", name]."""

    invite: Annotated[str, Meta(max_length=2_000)]
    event: Event


class Joined(msgspec.Struct):
    """The membership that an invite gave."""

    relay: str
    mesh: str
    node: str
    name: str
    role: Role


async def join_mesh(call: RelayCall) -> HttpResponse:
    """Redeem an invite."""
    body = await call.body(JoinRequest)
    context = call.context
    relay, code = _read_invite(body.invite)
    if relay != context.relay:
        raise error("invite_invalid", reason="it is for another relay")
    call.charge_join()
    signed = await context.engine.verify(msgspec.json.encode(body.event))
    proof = read_proof(signed, context.relay, context.clock.wall_ns())
    if proof.invite is None or proof.name is None:
        raise error("proof_invalid", reason="it needs one invite tag and one name tag with one value each")
    if proof.invite != code:
        raise error("proof_invalid", reason="its invite tag is not the code of the invite")
    row = await context.engine.invites.redeem(check_key(context, proof.node), code, proof.name)
    return json_response(Joined(context.relay, row.mesh, row.node, row.name, row.role))


def _read_invite(text: str) -> tuple[str, str]:
    """Return the relay and the code of an invite; a bare code is not enough."""
    try:
        parts = urlsplit(text)
        fields = parse_qs(parts.query, strict_parsing=True, max_num_fields=2)
    except ValueError:
        fields = {}
    if (
        not fields
        or parts.scheme != "posthouse"
        or {name: len(v) for name, v in fields.items()} != {"relay": 1, "code": 1}
    ):
        raise error("invite_invalid", reason="it is not posthouse://HOST:PORT/MESH?relay=NODE_ID&code=CODE")
    return fields["relay"][0], fields["code"][0]


JOIN_ROUTES = (
    Route(
        "POST",
        "/v1/join",
        join_mesh,
        "Join a mesh with an invite",
        is_public=True,
        bodies=(JoinRequest,),
        responses={200: Joined},
    ),
)
