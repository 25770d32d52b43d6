"""/v1/meshes/{mesh}: limits and usage, for members and admins; suspend, resume and delete, for admins of the relay.

MeshControl authorizes each change; these handlers only translate between HTTP and it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model.api import MeshLimitSets, MeshUsage
from posthouse.model.mesh_limits import MeshLimits
from posthouse.relay.accept.mesh_registry import Mesh
from posthouse.relay.context import RelayCall
from posthouse.relay.http.mesh_routes import MeshBody
from posthouse.relay.http.schemas import Done
from posthouse.relay.wire.mesh_rows import LimitSource


class LimitsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A whole set of limits; a limit that is left out does not apply."""

    limits: MeshLimits
    #: mesh: the mesh's own limits, set by its admins; relay: upper bounds for them, set by admins of the relay
    source: LimitSource = LimitSource.MESH


class StateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Whether a mesh can be used."""

    state: Literal["active", "suspended"]


async def show_limits(call: RelayCall) -> HttpResponse:
    """Show the limits in force, the mesh's own, and those that admins of the relay allow."""
    return json_response(_limit_sets(call.context.engine.mesh_control.find(call.node, call.params["mesh"])))


async def set_limits(call: RelayCall) -> HttpResponse:
    """Set the mesh's own limits, or those that admins of the relay allow."""
    node, mesh = call.node, call.params["mesh"]
    body = await call.body(LimitsRequest)
    control = call.context.engine.mesh_control
    await control.set_limits(node, mesh, body.source, body.limits)
    return json_response(_limit_sets(control.find(node, mesh)))


def _limit_sets(found: Mesh) -> MeshLimitSets:
    return MeshLimitSets(found.limits, found.limit_sets[LimitSource.MESH], found.limit_sets[LimitSource.RELAY])


async def show_usage(call: RelayCall) -> HttpResponse:
    """Show what a mesh has stored, and the limits in force."""
    node, mesh = call.node, call.params["mesh"]
    control = call.context.engine.mesh_control
    usage = await control.usage(node, mesh)
    found = control.find(node, mesh)
    counts = (usage.events, usage.bytes, len(found.members), len(found.topics))
    return json_response(MeshUsage(mesh, found.row.state.value, *counts, found.limits))


async def set_state(call: RelayCall) -> HttpResponse:
    """Suspend a mesh, or let its members use it again."""
    node = call.node
    body = await call.body(StateRequest)
    is_suspended = body.state == "suspended"
    row = await call.context.engine.mesh_control.suspend(node, call.params["mesh"], is_suspended=is_suspended)
    return json_response(MeshBody(row.mesh, row.is_open, row.creator))


async def delete_mesh(call: RelayCall) -> HttpResponse:
    """Delete a mesh permanently; its content is removed in the background."""
    await call.context.engine.mesh_control.delete(call.node, call.params["mesh"])
    return json_response(Done())


_PATH = "/v1/meshes/{mesh}"
MESH_CONTROL_ROUTES = (
    Route("GET", f"{_PATH}/limits", show_limits, "Show the limits of a mesh", responses={200: MeshLimitSets}),
    Route(
        "POST",
        f"{_PATH}/limits",
        set_limits,
        "Set limits of a mesh (its administrators, or those of the relay)",
        bodies=(LimitsRequest,),
        responses={200: MeshLimitSets},
    ),
    Route("GET", f"{_PATH}/usage", show_usage, "Show what a mesh has stored", responses={200: MeshUsage}),
    Route(
        "POST",
        f"{_PATH}/state",
        set_state,
        "Suspend or resume a mesh (administrators of the relay)",
        bodies=(StateRequest,),
        responses={200: MeshBody},
    ),
    Route("DELETE", _PATH, delete_mesh, "Delete a mesh (administrators of the relay)", responses={200: Done}),
)
