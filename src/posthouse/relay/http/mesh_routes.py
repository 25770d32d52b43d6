"""/v1/meshes: create, list, open and close meshes; their members, access rows, topics, subscriptions and blocks.

Administration authorizes each change; these handlers only translate between HTTP and it. Subscriptions and blocks are
those of the caller.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.http.response import HttpResponse, json_response
from posthouse.http.router import Route
from posthouse.model.api import MeshList
from posthouse.model.limits import SUBJECT_MAX_BYTES, TOPIC_MAX_BYTES
from posthouse.model.node import Role
from posthouse.model.subjects import PATTERN_FORM, TOPIC_FORM
from posthouse.relay.context import RelayCall
from posthouse.relay.http.schemas import MEMBER_NAME, MESH_NAME, NODE_ID, Done
from posthouse.relay.wire.mesh_rows import AccessRow, Verdict


class MeshRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A mesh to create; its creator becomes its administrator."""

    name: Annotated[str, MESH_NAME]
    #: any key that authenticates is a member
    open: bool = False
    #: the creator's own member name in it
    member_name: Annotated[str, MEMBER_NAME] | None = None


class MeshChange(msgspec.Struct, forbid_unknown_fields=True):
    """What to change about a mesh."""

    #: any key that authenticates is a member
    open: bool


class MeshBody(msgspec.Struct):
    """A mesh."""

    name: str
    open: bool
    creator: str


async def create_mesh(call: RelayCall) -> HttpResponse:
    """Create a mesh."""
    node = call.node
    body = await call.body(MeshRequest)
    row = await call.context.engine.administration.create_mesh(
        node, body.name, is_open=body.open, name=body.member_name
    )
    return json_response(MeshBody(row.mesh, row.is_open, row.creator), 201)


async def change_mesh(call: RelayCall) -> HttpResponse:
    """Open a mesh to every key that authenticates, or close it to all but its members."""
    node = call.node
    body = await call.body(MeshChange)
    row = await call.context.engine.administration.set_open(node, call.params["mesh"], is_open=body.open)
    return json_response(MeshBody(row.mesh, row.is_open, row.creator))


async def list_meshes(call: RelayCall) -> HttpResponse:
    """List the meshes that the caller may read."""
    return json_response(MeshList(call.context.engine.meshes_of(call.node)))


MESH_ROUTES = (
    Route("POST", "/v1/meshes", create_mesh, "Create a mesh", bodies=(MeshRequest,), responses={201: MeshBody}),
    Route("GET", "/v1/meshes", list_meshes, "List the meshes you may read", responses={200: MeshList}),
    Route(
        "POST",
        "/v1/meshes/{mesh}",
        change_mesh,
        "Open or close a mesh",
        bodies=(MeshChange,),
        responses={200: MeshBody},
    ),
)


class MemberBody(msgspec.Struct, forbid_unknown_fields=True):
    """A member of a mesh."""

    node: Annotated[str, NODE_ID]
    name: Annotated[str, MEMBER_NAME]
    role: Role = Role.MEMBER


class MemberList(msgspec.Struct):
    """The members of a mesh, by name."""

    members: list[MemberBody]


class MemberQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A member."""

    node: Annotated[str, NODE_ID]


async def list_members(call: RelayCall) -> HttpResponse:
    """List the members."""
    rows = call.context.engine.administration.members(call.node, call.params["mesh"])
    return json_response(MemberList([MemberBody(row.node, row.name, row.role) for row in rows]))


async def save_member(call: RelayCall) -> HttpResponse:
    """Add a member, or change its name or role."""
    node = call.node
    body = await call.body(MemberBody)
    row = await call.context.engine.administration.save_member(
        node, call.params["mesh"], body.node, body.name, body.role
    )
    return json_response(MemberBody(row.node, row.name, row.role))


async def remove_member(call: RelayCall) -> HttpResponse:
    """Remove a member."""
    await call.context.engine.administration.remove_member(
        call.node, call.params["mesh"], call.arguments(MemberQuery).node
    )
    return json_response(Done())


_MEMBERS_PATH = "/v1/meshes/{mesh}/members"
MEMBER_ROUTES = (
    Route("GET", _MEMBERS_PATH, list_members, "List members", responses={200: MemberList}),
    Route(
        "POST",
        _MEMBERS_PATH,
        save_member,
        "Add or change a member",
        bodies=(MemberBody,),
        responses={200: MemberBody},
    ),
    Route("DELETE", _MEMBERS_PATH, remove_member, "Remove a member", query=MemberQuery, responses={200: Done}),
)
NodeOrEveryone = Annotated[
    str, Meta(description="A node id, or * for every node.", pattern=r"^(\*|ed25519:[0-9a-f]{64})$")
]


class AccessBody(msgspec.Struct, forbid_unknown_fields=True):
    """What a node may do; a row restricts the rights of a role and never extends them."""

    node: NodeOrEveryone
    read: Verdict = Verdict.ALLOW
    write: Verdict = Verdict.ALLOW
    lock: Verdict = Verdict.ALLOW


class AccessList(msgspec.Struct):
    """The access rows of a mesh."""

    access: list[AccessBody]


class AccessQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A row."""

    node: NodeOrEveryone


async def list_access(call: RelayCall) -> HttpResponse:
    """List the rows."""
    rows = call.context.engine.administration.access(call.node, call.params["mesh"])
    return json_response(AccessList([AccessBody(row.node, row.read, row.write, row.lock) for row in rows]))


async def save_access(call: RelayCall) -> HttpResponse:
    """Set a row."""
    node = call.node
    body = await call.body(AccessBody)
    row = AccessRow(call.params["mesh"], body.node, body.read, body.write, body.lock)
    await call.context.engine.administration.save_access(node, row)
    return json_response(body)


async def remove_access(call: RelayCall) -> HttpResponse:
    """Remove a row, which lifts its restriction."""
    await call.context.engine.administration.remove_access(
        call.node, call.params["mesh"], call.arguments(AccessQuery).node
    )
    return json_response(Done())


_ACCESS_PATH = "/v1/meshes/{mesh}/access"
ACCESS_ROUTES = (
    Route("GET", _ACCESS_PATH, list_access, "List access rows", responses={200: AccessList}),
    Route("POST", _ACCESS_PATH, save_access, "Set an access row", bodies=(AccessBody,), responses={200: AccessBody}),
    Route("DELETE", _ACCESS_PATH, remove_access, "Remove an access row", query=AccessQuery, responses={200: Done}),
)
Topic = Annotated[
    str,
    Meta(
        description="The name of a topic.",
        min_length=1,
        max_length=TOPIC_MAX_BYTES,
        extra_json_schema={"pattern": f"^{TOPIC_FORM}$"},
    ),
]


class TopicBody(msgspec.Struct, forbid_unknown_fields=True):
    """A topic: a subject without wildcards."""

    name: Topic


class TopicList(msgspec.Struct):
    """The topics of a mesh."""

    topics: list[TopicBody]


class TopicQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A topic."""

    name: Topic


async def list_topics(call: RelayCall) -> HttpResponse:
    """List the topics."""
    names = call.context.engine.participation.topics(call.node, call.params["mesh"])
    return json_response(TopicList([TopicBody(name) for name in names]))


async def create_topic(call: RelayCall) -> HttpResponse:
    """Create a topic."""
    node = call.node
    body = await call.body(TopicBody)
    await call.context.engine.participation.create_topic(node, call.params["mesh"], body.name)
    return json_response(body, 201)


async def remove_topic(call: RelayCall) -> HttpResponse:
    """Remove a topic."""
    await call.context.engine.participation.remove_topic(
        call.node, call.params["mesh"], call.arguments(TopicQuery).name
    )
    return json_response(Done())


_TOPICS_PATH = "/v1/meshes/{mesh}/topics"
TOPIC_ROUTES = (
    Route("GET", _TOPICS_PATH, list_topics, "List topics", responses={200: TopicList}),
    Route("POST", _TOPICS_PATH, create_topic, "Create a topic", bodies=(TopicBody,), responses={201: TopicBody}),
    Route("DELETE", _TOPICS_PATH, remove_topic, "Remove a topic", query=TopicQuery, responses={200: Done}),
)
Pattern = Annotated[
    str,
    Meta(
        description="A subject, with * and > as wildcards.",
        min_length=1,
        max_length=SUBJECT_MAX_BYTES,
        extra_json_schema={"pattern": f"^{PATTERN_FORM}$"},
    ),
]


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription of the caller."""

    pattern: Pattern


class SubscriptionList(msgspec.Struct):
    """The subscriptions of the caller."""

    subscriptions: list[SubscriptionBody]


class SubscriptionQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription."""

    pattern: Pattern


async def list_subscriptions(call: RelayCall) -> HttpResponse:
    """List the caller's subscriptions."""
    patterns = call.context.engine.participation.subscriptions(call.node, call.params["mesh"])
    return json_response(SubscriptionList([SubscriptionBody(pattern) for pattern in patterns]))


async def subscribe(call: RelayCall) -> HttpResponse:
    """Subscribe."""
    node = call.node
    body = await call.body(SubscriptionBody)
    await call.context.engine.participation.subscribe(node, call.params["mesh"], body.pattern)
    return json_response(body)


async def unsubscribe(call: RelayCall) -> HttpResponse:
    """End a subscription."""
    pattern = call.arguments(SubscriptionQuery).pattern
    await call.context.engine.participation.unsubscribe(call.node, call.params["mesh"], pattern)
    return json_response(Done())


_SUBSCRIPTIONS_PATH = "/v1/meshes/{mesh}/subscriptions"
SUBSCRIPTION_ROUTES = (
    Route("GET", _SUBSCRIPTIONS_PATH, list_subscriptions, "List your subscriptions", responses={200: SubscriptionList}),
    Route(
        "POST",
        _SUBSCRIPTIONS_PATH,
        subscribe,
        "Subscribe to topics",
        bodies=(SubscriptionBody,),
        responses={200: SubscriptionBody},
    ),
    Route(
        "DELETE", _SUBSCRIPTIONS_PATH, unsubscribe, "End a subscription", query=SubscriptionQuery, responses={200: Done}
    ),
)


class BlockBody(msgspec.Struct, forbid_unknown_fields=True):
    """A node that the caller blocks."""

    node: Annotated[str, NODE_ID]


class BlockList(msgspec.Struct):
    """The nodes that the caller blocks."""

    blocks: list[BlockBody]


class BlockQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A block."""

    node: Annotated[str, NODE_ID]


async def list_blocks(call: RelayCall) -> HttpResponse:
    """List the caller's blocks."""
    nodes = call.context.engine.participation.blocks(call.node, call.params["mesh"])
    return json_response(BlockList([BlockBody(node) for node in nodes]))


async def block(call: RelayCall) -> HttpResponse:
    """Block a node."""
    node = call.node
    body = await call.body(BlockBody)
    await call.context.engine.participation.block(node, call.params["mesh"], body.node)
    return json_response(body)


async def unblock(call: RelayCall) -> HttpResponse:
    """Remove a block."""
    await call.context.engine.participation.unblock(call.node, call.params["mesh"], call.arguments(BlockQuery).node)
    return json_response(Done())


_BLOCKS_PATH = "/v1/meshes/{mesh}/blocks"
BLOCK_ROUTES = (
    Route("GET", _BLOCKS_PATH, list_blocks, "List your blocks", responses={200: BlockList}),
    Route("POST", _BLOCKS_PATH, block, "Block a node", bodies=(BlockBody,), responses={200: BlockBody}),
    Route("DELETE", _BLOCKS_PATH, unblock, "Remove a block", query=BlockQuery, responses={200: Done}),
)
