"""/v1/meshes/{mesh}/topics: the subjects that members post to."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.answer import Answer, json_answer
from posthouse.model.limits import TOPIC_MAX_BYTES
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import Done
from posthouse.relay.http.route import Route

Topic = Annotated[str, Meta(description="The name of a topic.", min_length=1, max_length=TOPIC_MAX_BYTES)]


class TopicBody(msgspec.Struct, forbid_unknown_fields=True):
    """A topic: a subject without wildcards."""

    name: Topic


class TopicList(msgspec.Struct):
    """The topics of a mesh."""

    topics: list[TopicBody]


class TopicQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A topic."""

    name: Topic


async def show(call: Call) -> Answer:
    """List the topics."""
    names = call.edge.core.participation.topics(call.node, call.params["mesh"])
    return json_answer(TopicList([TopicBody(name) for name in names]))


async def create(call: Call) -> Answer:
    """Create a topic."""
    node = call.node
    given = await call.body(TopicBody)
    await call.edge.core.participation.create_topic(node, call.params["mesh"], given.name)
    return json_answer(given, 201)


async def remove(call: Call) -> Answer:
    """Remove a topic."""
    await call.edge.core.participation.remove_topic(call.node, call.params["mesh"], call.arguments(TopicQuery).name)
    return json_answer(Done())


_PATH = "/v1/meshes/{mesh}/topics"
ROUTES = (
    Route("GET", _PATH, show, "List topics", answers={200: TopicList}),
    Route("POST", _PATH, create, "Create a topic", bodies=(TopicBody,), answers={201: TopicBody}),
    Route("DELETE", _PATH, remove, "Remove a topic", query=TopicQuery, answers={200: Done}),
)
