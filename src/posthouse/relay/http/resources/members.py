"""/v1/meshes/{mesh}/members: who is listed in a mesh, under which name and role."""

from __future__ import annotations

from typing import Annotated

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import MEMBER_NAME, NODE_ID, Done
from posthouse.relay.http.route import Route
from posthouse.relay.meshes.rows import Role


class MemberBody(msgspec.Struct, forbid_unknown_fields=True):
    """A node listed in a mesh."""

    node: Annotated[str, NODE_ID]
    name: Annotated[str, MEMBER_NAME]
    role: Role = Role.MEMBER


class MemberList(msgspec.Struct):
    """The members of a mesh, by name."""

    members: list[MemberBody]


class MemberQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A member."""

    node: Annotated[str, NODE_ID]


async def show(call: Call) -> Answer:
    """List the members."""
    rows = call.edge.core.administration.members(call.node, call.params["mesh"])
    return json_answer(MemberList([MemberBody(row.node, row.name, row.role) for row in rows]))


async def save(call: Call) -> Answer:
    """List a node, or change its name or role."""
    node = call.node
    given = await call.body(MemberBody)
    row = await call.edge.core.administration.save_member(node, call.params["mesh"], given.node, given.name, given.role)
    return json_answer(MemberBody(row.node, row.name, row.role))


async def remove(call: Call) -> Answer:
    """Take a node off the list."""
    await call.edge.core.administration.remove_member(call.node, call.params["mesh"], call.arguments(MemberQuery).node)
    return json_answer(Done())


_PATH = "/v1/meshes/{mesh}/members"
ROUTES = (
    Route("GET", _PATH, show, "List members", answers={200: MemberList}),
    Route("POST", _PATH, save, "List a member, or change it", bodies=(MemberBody,), answers={200: MemberBody}),
    Route("DELETE", _PATH, remove, "Remove a member", query=MemberQuery, answers={200: Done}),
)
