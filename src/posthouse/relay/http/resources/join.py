"""/v1/join: become a member of a mesh by an invite."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Meta

from posthouse.answer import Answer, json_answer
from posthouse.model.errors import error
from posthouse.model.event import Event
from posthouse.relay.auth import read_proof
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Access, Route
from posthouse.relay.meshes.rows import Role


class JoinRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An invite, and kind 22242 with ["relay", relay], ["invite", code] and ["name", name]."""

    invite: Annotated[str, Meta(max_length=2_000)]
    event: Event


class Joined(msgspec.Struct):
    """Who joined what."""

    relay: str
    mesh: str
    node: str
    name: str
    role: Role


async def join(call: Call) -> Answer:
    """Redeem an invite; the signed event names the relay, so no other relay can redeem it with it."""
    given = await call.body(JoinRequest)
    edge = call.edge
    relay, code = _read_invite(given.invite)
    if relay != edge.relay:
        raise error("invite_invalid", reason="it is for another relay")
    signed = await edge.core.verify(msgspec.json.encode(given.event))
    proof = read_proof(signed, edge.relay, edge.clock.wall_ns())
    if proof.invite is None or proof.name is None:
        raise error("proof_invalid", reason="it needs one invite tag and one name tag with one value each")
    if proof.invite != code:
        raise error("proof_invalid", reason="its invite tag is not the code of the invite")
    row = await edge.core.invites.redeem(proof.node, code, proof.name)
    return json_answer(Joined(edge.relay, row.mesh, row.node, row.name, row.role))


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


ROUTES = (
    Route(
        "POST",
        "/v1/join",
        join,
        "Join a mesh by an invite",
        Access.ANYBODY,
        bodies=(JoinRequest,),
        answers={200: Joined},
    ),
)
