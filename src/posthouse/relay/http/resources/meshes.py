"""/v1/meshes: create a mesh, and list those the asker belongs to."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import MEMBER_NAME, MESH_NAME
from posthouse.relay.http.route import Route


class MeshRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A mesh to create; who creates it administers it."""

    name: Annotated[str, MESH_NAME]
    #: any key that authenticates is a member
    open: bool = False
    #: the creator's own member name in it
    member_name: Annotated[str, MEMBER_NAME] | None = None


class MeshBody(msgspec.Struct):
    """A mesh."""

    name: str
    open: bool
    creator: str


class MeshList(msgspec.Struct):
    """Meshes, each with its name, whether it is open, and the asker's role and member name there."""

    meshes: list[dict[str, Any]]


async def create(call: Call) -> Answer:
    """Create a mesh."""
    node = call.node
    given = await call.body(MeshRequest)
    row = await call.edge.core.administration.create_mesh(node, given.name, is_open=given.open, name=given.member_name)
    return json_answer(MeshBody(row.mesh, row.is_open, row.creator), 201)


async def show(call: Call) -> Answer:
    """List the meshes the asker may read."""
    return json_answer(MeshList(call.edge.core.meshes_of(call.node)))


ROUTES = (
    Route("POST", "/v1/meshes", create, "Create a mesh", bodies=(MeshRequest,), answers={201: MeshBody}),
    Route("GET", "/v1/meshes", show, "List the meshes you may read", answers={200: MeshList}),
)
