"""/v1/topic/*: make topics, subscribe to them, list them; all at the relay, the list also without it."""

from __future__ import annotations

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.daemon.ipc.call import Call
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.model.errors import PosthouseError


class _Topic(msgspec.Struct, forbid_unknown_fields=True):
    #: a name, or a pattern to subscribe with; a leading # is left out
    topic: str


async def create(call: Call) -> Answer:
    """Make a topic."""
    topic = await _topic(call)
    await call.daemon.uplink.client.meshes.create_topic(call.daemon.settings.mesh, topic)
    call.daemon.roster.add_topic(topic)
    return json_answer({"topic": topic}, 201)


async def subscribe(call: Call) -> Answer:
    """Subscribe this node to topics that match a pattern."""
    pattern = await _topic(call)
    await call.daemon.uplink.client.meshes.subscribe(call.daemon.settings.mesh, pattern)
    return json_answer({"topic": pattern, "subscribed": True})


async def unsubscribe(call: Call) -> Answer:
    """End a subscription."""
    pattern = await _topic(call)
    await call.daemon.uplink.client.meshes.unsubscribe(call.daemon.settings.mesh, pattern)
    return json_answer({"topic": pattern, "subscribed": False})


async def list_topics(call: Call) -> Answer:
    """List topics, and what this node is subscribed to; without the relay as last heard, subscriptions null."""
    daemon = call.daemon
    try:
        client = daemon.uplink.client
        daemon.roster.take_topics(await client.meshes.topics(daemon.settings.mesh))
        subscriptions: list[str] | None = await client.meshes.subscriptions(daemon.settings.mesh)
    except PosthouseError as failure:
        if failure.code != "relay_unreachable":
            raise
        subscriptions = None
    return json_answer(
        {"topics": list(daemon.roster.topics), "subscriptions": subscriptions, "is_cached": subscriptions is None}
    )


async def _topic(call: Call) -> str:
    return (await call.body(_Topic)).topic.removeprefix(TOPIC_MARK)
