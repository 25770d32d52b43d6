"""/v1/meshes/{mesh}/blocks: nodes whose messages the asker does not want."""

from __future__ import annotations

from typing import Annotated

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import NODE_ID, Done
from posthouse.relay.http.route import Route


class BlockBody(msgspec.Struct, forbid_unknown_fields=True):
    """A node that the asker blocks."""

    node: Annotated[str, NODE_ID]


class BlockList(msgspec.Struct):
    """The nodes the asker blocks."""

    blocks: list[BlockBody]


class BlockQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A block."""

    node: Annotated[str, NODE_ID]


async def show(call: Call) -> Answer:
    """List the asker's blocks."""
    nodes = call.edge.core.participation.blocks(call.node, call.params["mesh"])
    return json_answer(BlockList([BlockBody(node) for node in nodes]))


async def block(call: Call) -> Answer:
    """Block a node."""
    node = call.node
    given = await call.body(BlockBody)
    await call.edge.core.participation.block(node, call.params["mesh"], given.node)
    return json_answer(given)


async def unblock(call: Call) -> Answer:
    """Lift a block."""
    await call.edge.core.participation.unblock(call.node, call.params["mesh"], call.arguments(BlockQuery).node)
    return json_answer(Done())


_PATH = "/v1/meshes/{mesh}/blocks"
ROUTES = (
    Route("GET", _PATH, show, "List your blocks", answers={200: BlockList}),
    Route("POST", _PATH, block, "Block a node", bodies=(BlockBody,), answers={200: BlockBody}),
    Route("DELETE", _PATH, unblock, "Lift a block", query=BlockQuery, answers={200: Done}),
)
