"""/v1/meshes/{mesh}/access: what is taken from a node, or from everybody without a row of their own."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.answer import Answer, json_answer
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import Done
from posthouse.relay.http.route import Route
from posthouse.relay.meshes.rows import AccessRow, Verdict

Somebody = Annotated[str, Meta(description="A node id, or * for everybody.", pattern=r"^(\*|ed25519:[0-9a-f]{64})$")]


class AccessBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a node may do; it narrows the role, never widens it."""

    node: Somebody
    read: Verdict = Verdict.ALLOW
    write: Verdict = Verdict.ALLOW
    lock: Verdict = Verdict.ALLOW


class AccessList(msgspec.Struct):
    """The access rows of a mesh."""

    access: list[AccessBody]


class AccessQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A row."""

    node: Somebody


async def show(call: Call) -> Answer:
    """List the rows."""
    rows = call.edge.core.administration.access(call.node, call.params["mesh"])
    return json_answer(AccessList([AccessBody(row.node, row.read, row.write, row.lock) for row in rows]))


async def save(call: Call) -> Answer:
    """Set a row."""
    node = call.node
    given = await call.body(AccessBody)
    row = AccessRow(call.params["mesh"], given.node, given.read, given.write, given.lock)
    await call.edge.core.administration.save_access(node, row)
    return json_answer(given)


async def remove(call: Call) -> Answer:
    """Remove a row: what it took is given back."""
    await call.edge.core.administration.remove_access(call.node, call.params["mesh"], call.arguments(AccessQuery).node)
    return json_answer(Done())


_PATH = "/v1/meshes/{mesh}/access"
ROUTES = (
    Route("GET", _PATH, show, "List access rows", answers={200: AccessList}),
    Route("POST", _PATH, save, "Set an access row", bodies=(AccessBody,), answers={200: AccessBody}),
    Route("DELETE", _PATH, remove, "Remove an access row", query=AccessQuery, answers={200: Done}),
)
