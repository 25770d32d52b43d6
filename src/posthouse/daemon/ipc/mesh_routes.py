"""Routes that need the relay: message status, history, peers, profile, topics and locks.

Without a connection they answer relay_unreachable, except peers, topics and the status of an outbox row: these
answer with cached values. The owner of a lock is the daemon's node.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from posthouse.daemon.agents.registry import AgentFields
from posthouse.daemon.context import LocalCall
from posthouse.daemon.inbox.read_state import answered_at_ns
from posthouse.daemon.ipc.merged import find_outbox_row
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.outbox.outbox_rows import OutboxRow
from posthouse.daemon.registrar import agent_profile
from posthouse.daemon.request_fields import (
    LeaseMs,
    LockRequestId,
    LockToken,
    MeshName,
    Resource,
    Topic,
    TopicPattern,
    WaitMs,
)
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import is_event_id
from posthouse.model.outbox_rules import shown_state
from posthouse.model.profile import Line, Words
from posthouse.model.subjects import validate_subject


async def show_message(call: LocalCall) -> HttpResponse:
    """Return the outbox row of a message and its state per recipient; the id is the message's or the row's."""
    found = await _outbox_row(call)
    if found is None and not is_event_id(call.id):
        raise error("outbox_row_unknown", id=call.id)
    nodes, row = (call.meshes, None) if found is None else ([found[0]], found[1])
    relay, failure = await _relay_states(nodes, call.id if row is None else row["message_id"])
    if row is None and relay is None and failure is not None:
        raise failure
    if row is not None and row["history_id"] is None and row["status"] == "done":
        failure = None  # between agents of this host: no relay has it
    shown = {} if found is None else await _shown_state(found[0], found[2], relay)
    return json_response(
        {"outbox": row, "relay": relay, "relay_error": None if failure is None else failure.code} | shown
    )


async def _shown_state(node: MeshNode, row: OutboxRow, relay: Any) -> dict[str, Any]:
    """Return how far a message of this host has got, and if its recipient sends receipts."""
    answered_ns = await node.inbox.store.pool.run(lambda db: answered_at_ns(db, row.message_id))
    delivery = relay["deliveries"][0] if relay and len(relay["deliveries"]) == 1 else {}
    state = shown_state(row.state, delivery.get("state"), delivery.get("receipt"), is_answered=answered_ns is not None)
    return {
        "state": state.value,
        "answered_at": None if answered_ns is None else format_utc(answered_ns),
        "has_receipts": node.addresses.sends_receipts(row.destination, row.to_agent),
    }


async def _outbox_row(call: LocalCall) -> tuple[MeshNode, dict[str, Any], OutboxRow] | None:
    try:
        node, row = await find_outbox_row(call, call.id)
    except PosthouseError as failure:
        if failure.code != "outbox_row_unknown":
            raise
        return None
    return node, row.to_api() | {"mesh": node.mesh}, row


async def _relay_states(nodes: Sequence[MeshNode], message_id: str) -> tuple[Any, PosthouseError | None]:
    """Return the states that the first relay with the message reports, or the reason why there are none."""
    refusal: PosthouseError | None = None
    for node in nodes:
        try:
            return msgspec.to_builtins(await node.uplink.client.message(message_id)), None
        except PosthouseError as failure:
            refusal = refusal or failure
    return None, refusal


#: a profile is an event: all its texts together stay far below the size of one
Paragraph = Annotated[str, msgspec.Meta(max_length=8_000)]


class ProfileBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    summary: Line | None = None
    status: Literal["idle", "working", "dnd"] | None = None
    visible: bool | None = None
    avatar: Paragraph | None = None
    title: Line | None = None
    bio: Paragraph | None = None
    capabilities: Words | None = None
    mesh: MeshName | None = None


async def list_peers(call: LocalCall) -> HttpResponse:
    """Return the members and their presence; without a connection, the cached members."""
    mesh = call.mesh
    await mesh.uplink.refresh_for_reader()
    online = mesh.uplink.online
    listed = {
        member.node: {"name": member.name, "role": member.role, "pinned": member.pinned}
        for member in mesh.roster.members
    }
    for node, entry in online.items():
        if mesh.roster.is_replaced(node):  # its sessions have ended; the relay lists the new key
            continue
        listed.setdefault(node, {"name": entry.name, "role": entry.role, "pinned": None})
    listed.setdefault(mesh.key.node, {"name": None, "role": None, "pinned": None})  # its agents need no relay
    peers = [
        {
            "node": node,
            **about,
            **_presence(online.get(node)),
            "former_key": mesh.roster.former_key(node),
            "is_self": node == mesh.key.node,
            "agents": _agents(call, node, online.get(node)),
        }
        for node, about in listed.items()
    ]
    return json_response({"peers": peers, "mesh": mesh.mesh, "is_cached": not mesh.uplink.is_up})


async def update_profile(call: LocalCall) -> HttpResponse:
    """Change the profile of this host, or of the calling agent; fields that are not given stay."""
    body = await call.body(ProfileBody)
    mesh = call.mesh
    if not call.agent:
        changes = msgspec.to_builtins(body)
        changes.pop("mesh", None)
        return json_response({"applied": await mesh.registrar.change_profile(changes)})
    if any(value is not None for value in (body.visible, body.avatar, body.title, body.bio)):
        raise error("body_invalid", reason="an agent has a summary, a status and capabilities; the rest is its host's")
    given = AgentFields(summary=body.summary, status=body.status, capabilities=body.capabilities)
    return json_response({"applied": (await call.context.agents.change(call.agent, given)).to_api()})


def _agents(call: LocalCall, node: str, entry: Any) -> list[dict[str, Any]]:
    """Return the agents of a host that accept mail; those of this host are known without the relay."""
    mesh = call.mesh
    if node == mesh.key.node:
        agents = call.context.agents
        active = [agent for agent in agents.agents.values() if not agent.is_retired]
        return [
            msgspec.to_builtins(agent_profile(agent, agents.pause_of(agent.name))) | {"online": agent.is_running}
            for agent in active
        ]
    listed = mesh.uplink.listed_agents().get(node) or ()
    online = () if entry is None else entry.online_agents
    return [msgspec.to_builtins(agent) | {"online": agent.name in online} for agent in listed if not agent.retired]


def _presence(entry: Any) -> dict[str, Any]:
    return {"online": entry is not None and entry.online, "status": None if entry is None else entry.status}


class TopicBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: Topic
    mesh: MeshName | None = None


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: TopicPattern
    mesh: MeshName | None = None


async def create_topic(call: LocalCall) -> HttpResponse:
    """Create a topic."""
    topic = (await call.body(TopicBody)).topic.removeprefix(TOPIC_MARK)
    await call.mesh.uplink.client.meshes.create_topic(call.mesh.mesh, topic)
    call.mesh.roster.add_topic(topic)
    return json_response({"topic": topic}, 201)


async def subscribe_topic(call: LocalCall) -> HttpResponse:
    """Subscribe the calling agent, or the default inbox, to the topics that match a pattern."""
    pattern = await _read_pattern(call)
    await call.mesh.registrar.subscribe(call.active_agent, pattern)
    return json_response({"topic": pattern, "subscribed": True})


async def unsubscribe_topic(call: LocalCall) -> HttpResponse:
    """End a subscription."""
    pattern = await _read_pattern(call)
    await call.mesh.registrar.unsubscribe(call.agent, pattern)
    return json_response({"topic": pattern, "subscribed": False})


async def list_topics(call: LocalCall) -> HttpResponse:
    """List the topics and the subscriptions of the calling agent; without a connection, only cached topics."""
    mesh = call.mesh
    try:
        client = mesh.uplink.client
        mesh.roster.set_topics(await client.meshes.topics(mesh.mesh))
        await mesh.registrar.compare_subscriptions()
        subscriptions: list[str] | None = mesh.registrar.subscriptions_of(call.agent)
    except PosthouseError as failure:
        if failure.code != "relay_unreachable":
            raise
        subscriptions = None
    return json_response(
        {"topics": list(mesh.roster.topics), "subscriptions": subscriptions, "is_cached": subscriptions is None}
    )


async def _read_pattern(call: LocalCall) -> str:
    topic = (await call.body(SubscriptionBody)).topic.removeprefix(TOPIC_MARK)
    return validate_subject(topic, allow_wildcards=True)


class AcquireBody(msgspec.Struct, forbid_unknown_fields=True):
    resource: Resource
    lease_ms: LeaseMs
    mesh: MeshName | None = None
    request_id: LockRequestId | None = None
    wait_ms: WaitMs = 0


class RenewBody(msgspec.Struct, forbid_unknown_fields=True):
    resource: Resource
    token: LockToken
    lease_ms: LeaseMs
    mesh: MeshName | None = None


class ReleaseLockBody(msgspec.Struct, forbid_unknown_fields=True):
    resource: Resource
    token: LockToken
    mesh: MeshName | None = None


async def acquire_lock(call: LocalCall) -> HttpResponse:
    """Acquire a lock."""
    body = await call.body(AcquireBody)
    locks = call.mesh.uplink.client.locks
    grant = locks.acquire(
        body.resource,
        lease_ms=body.lease_ms,
        wait_ms=body.wait_ms,
        request_id=body.request_id,
        mesh=call.mesh.mesh,
        # agents share the daemon's node: each is a session, and so is each request of the host itself
        session=call.agent or body.request_id or secrets.token_hex(8),
    )
    if not body.wait_ms:
        return json_response(await grant)
    with call.waiting(call.context.waiters):
        return json_response(await grant)


async def renew_lock(call: LocalCall) -> HttpResponse:
    """Renew a lease."""
    body = await call.body(RenewBody)
    locks = call.mesh.uplink.client.locks
    session = call.agent or None
    return json_response(
        await locks.renew(body.resource, body.token, lease_ms=body.lease_ms, mesh=call.mesh.mesh, session=session)
    )


async def release_lock(call: LocalCall) -> HttpResponse:
    """Release a lock."""
    body = await call.body(ReleaseLockBody)
    locks = call.mesh.uplink.client.locks
    await locks.release(body.resource, body.token, mesh=call.mesh.mesh, session=call.agent or None)
    return json_response({"resource": body.resource, "released": True})
