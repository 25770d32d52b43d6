"""GET /v1/history, /v1/threads and /v1/traffic: messages, threads, and who exchanged how many messages with whom.

History is the messages of a topic, or between the caller and a member or agent, newest first.

Messages between agents of this host are only in its inbox. All other messages come from the relay, so that they include
those that other outboxes of this node sent. An agent sees its own conversations; the host itself sees those of all its
agents. A page may have fewer messages than its limit although more follow; `before` is set then.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from posthouse.client import Client, Stored
from posthouse.daemon.context import LocalCall
from posthouse.daemon.inbox.inbox_items import InboxItem
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.request_fields import Moment, NsBoundary, Peer, Topic, form
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.address import Recipient
from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import MESSAGE
from posthouse.model.limits import INT64_MAX, SECOND_NS
from posthouse.model.message import history_item
from posthouse.model.subjects import validate_topic

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
THREADS_MAX_LIMIT = 100
HOUR_NS = 3_600 * SECOND_NS
_NS_DIGITS = 19
_PAGES_MAX = 20  # of the relay's history that one request searches for an agent's messages
_LOCAL = "local:"  # begins a cursor in the inbox
HistoryCursor = Annotated[str, form("`before` of the previous page.", _LOCAL + "[0-9]{1,15}", "[A-Za-z0-9_-]{32}")]


class HistoryQuery(msgspec.Struct):
    topic: Topic | None = None
    with_: Peer | None = msgspec.field(default=None, name="with")
    before: HistoryCursor | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT


class ThreadsQuery(msgspec.Struct):
    before: NsBoundary | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=THREADS_MAX_LIMIT)] = DEFAULT_LIMIT


class TrafficQuery(msgspec.Struct):
    #: a time; absent: an hour ago
    since: Moment | None = None


async def list_threads(call: LocalCall) -> HttpResponse:
    """Return the threads of a mesh, the one with the newest message first."""
    arguments, node = call.arguments(ThreadsQuery), call.mesh
    before = arguments.before
    is_time = before is None or (before.isascii() and before.isdecimal() and len(before) <= _NS_DIGITS)
    if not is_time or (before is not None and int(before) > INT64_MAX):
        raise error("parameter_invalid", name="before", reason="use the `next` of the last answer")
    page = await node.threads.newest(INT64_MAX if before is None else int(before), arguments.limit, call.agent)
    items = [{"mesh": node.mesh} | thread.to_summary() for thread in page.threads]
    return json_response({"items": items, "next": None if page.before_ns is None else str(page.before_ns)})


async def show_traffic(call: LocalCall) -> HttpResponse:
    """Return how many messages agents of this host exchanged, and with whom, since a given time."""
    arguments, node = call.arguments(TrafficQuery), call.mesh
    now_ns = call.context.clock.wall_ns()
    since_ns = now_ns - HOUR_NS if arguments.since is None else parse_utc(arguments.since)
    found = await node.threads.traffic(since_ns)
    items = [each.to_api() for each in found.exchanges]
    return json_response({"items": items, "since": format_utc(found.since_ns)})


async def show_history(call: LocalCall) -> HttpResponse:
    """Return messages of a topic, or with a member or agent, newest first."""
    arguments = call.arguments(HistoryQuery)
    if (arguments.topic is None) == (arguments.with_ is None):
        raise error("parameter_invalid", name="topic", reason="give either topic or with")
    node = call.mesh
    if arguments.with_ is None:
        topic = validate_topic(str(arguments.topic).removeprefix(TOPIC_MARK))
        filter_: dict[str, Any] = {"kinds": [MESSAGE], "mesh": node.mesh, "#t": [topic]}
        page = await node.uplink.client.query(filter_, limit=arguments.limit, order="desc", cursor=arguments.before)
        messages = [_entry(node.uplink.client, node, stored) for stored in page.events]
        return json_response({"messages": messages, "before": page.cursor})
    peer = await node.addresses.resolve_past(arguments.with_)
    if peer.destination == node.key.node:
        return json_response(await _local_page(call, node, peer.agent, arguments))
    return json_response(await _relay_page(call, node, peer, arguments))


async def _relay_page(call: LocalCall, node: MeshNode, peer: Recipient, arguments: HistoryQuery) -> dict[str, Any]:
    """Return the messages that the caller and a peer exchanged; pages without any of theirs are skipped."""
    client, own = node.uplink.client, node.key.node
    both = [own, peer.destination]
    filter_: dict[str, Any] = {"kinds": [MESSAGE], "mesh": node.mesh, "authors": both, "#p": both}
    messages: list[dict[str, Any]] = []
    cursor = arguments.before
    for _ in range(_PAGES_MAX):
        limit = arguments.limit - len(messages)
        page = await client.query(filter_, limit=limit, order="desc", cursor=cursor)
        entries = [_entry(client, node, stored) for stored in page.events]
        messages += [each for each in entries if _is_between(each, own, call.agent, peer.agent)]
        cursor = page.cursor
        if cursor is None or len(messages) >= arguments.limit:
            break
    return {"messages": messages, "before": cursor}


def _is_between(entry: dict[str, Any], own: str, agent: str, peer: str) -> bool:
    """Return True for a message between an agent, or any of this host, and a peer's agent, or any of that host."""
    mine, theirs = ("from_agent", "to_agent") if entry["sender"] == own else ("to_agent", "from_agent")
    return (not agent or entry[mine] == agent) and (not peer or entry[theirs] == peer)


async def _local_page(call: LocalCall, node: MeshNode, peer: str, arguments: HistoryQuery) -> dict[str, Any]:
    """Return messages between agents of this host, from its inbox."""
    before = _position(arguments.before)
    items = await node.inbox.between(node.key.node, call.agent, peer, before, arguments.limit + 1)
    shown = items[: arguments.limit]
    following = f"{_LOCAL}{shown[-1].position}" if len(items) > arguments.limit else None
    return {"messages": [_local_entry(node, item) for item in shown], "before": following}


def _position(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    digits = cursor.removeprefix(_LOCAL)
    if not cursor.startswith(_LOCAL) or not digits.isdecimal():
        raise error("parameter_invalid", name="before", reason="use the `before` of the last answer")
    return int(digits)


def _entry(client: Client, node: MeshNode, stored: Stored) -> dict[str, Any]:
    event = stored.event
    try:
        body, undecryptable = client.open(event), None
    except PosthouseError as failure:
        body, undecryptable = None, failure.code
    return history_item(stored.seq, event, node.roster.name_of(event.pubkey), body, undecryptable)


def _local_entry(node: MeshNode, item: InboxItem) -> dict[str, Any]:
    """Return a message between agents of this host in the form of the relay's history; no relay gave it a seq."""
    return {
        "message_id": item.message_id,
        "history_id": None,
        "client_message_id": item.client_message_id,
        "mesh": item.mesh,
        "topic": None,
        "to": node.key.node,
        "to_agent": item.to_agent,
        "sender": item.sender,
        "from_agent": item.from_agent,
        "sender_name": node.roster.name_of(item.sender),
        "body": item.body,
        "meta": msgspec.json.decode(item.meta) if item.meta else None,
        "reply_to_id": item.reply_to_id,
        "priority": item.priority,
        "sent_at": format_utc(item.received_at_ns),
        "undecryptable": None,
    }
