"""/v1/meshes/{mesh}/invites: one string that lets another host join."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta

from posthouse.answer import Answer, json_answer
from posthouse.model.limits import DAY_S
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Route
from posthouse.relay.listen import advertised
from posthouse.relay.meshes.invites import MAX_EXPIRES_S, MAX_USES
from posthouse.relay.meshes.rows import Role


class InviteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How often and how long an invite works, and what it makes of who uses it."""

    uses: Annotated[int, Meta(ge=1, le=MAX_USES)] = 1
    expires_s: Annotated[int, Meta(ge=1, le=MAX_EXPIRES_S)] = DAY_S
    role: Role = Role.MEMBER


class InviteBody(msgspec.Struct):
    """An invite: posthouse://HOST:PORT/MESH?relay=NODE_ID&code=CODE."""

    invite: str
    expires_at_ns: int


async def create(call: Call) -> Answer:
    """Make an invite."""
    node = call.node
    given = await call.body(InviteRequest)
    made = await call.edge.core.invites.create(
        node, call.params["mesh"], uses=given.uses, expires_s=given.expires_s, role=given.role
    )
    host = advertised(call.edge.address, call.request.headers.get("Host"))
    relay, code = quote(call.edge.relay, safe=":"), quote(made.code, safe="")
    return json_answer(InviteBody(f"posthouse://{host}/{made.mesh}?relay={relay}&code={code}", made.expires_at_ns), 201)


ROUTES = (
    Route(
        "POST",
        "/v1/meshes/{mesh}/invites",
        create,
        "Make an invite",
        bodies=(InviteRequest,),
        answers={201: InviteBody},
    ),
)
