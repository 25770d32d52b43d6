"""Routes for outgoing messages: POST /v1/send, POST /v1/topic/post, and /v1/outbox.

Sending answers once the message is in the outbox. An operator can list rows, inspect one with its chain, requeue or
drop it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from posthouse.daemon.context import LocalCall
from posthouse.daemon.ipc.merged import Boundary, bounds_in, find_outbox_row, merge_by_time, resolve_in_meshes
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.outbox.outbox import OutboxFilter
from posthouse.daemon.outbox.outbox_rows import OutboxRow
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.daemon.send import SendRequest, Via
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.errors import PosthouseError

_KEY_HEADER = "Idempotency-Key"


class PostBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    message: str
    priority: str | None = None
    meta: dict[str, Any] | None = None
    reply_to_id: str | None = None
    mentions: list[str] | None = None
    client_message_id: str | None = None
    mesh: str | None = None
    supersedes: str | None = None
    valid_until: str | None = None
    failure: bool = False
    via: Via | None = None


async def send_message(call: LocalCall) -> HttpResponse:
    """Accept a message."""
    return await _accept_message(call, await call.body(SendRequest))


async def post_to_topic(call: LocalCall) -> HttpResponse:
    """Accept a message to a topic."""
    body = await call.body(PostBody)
    return await _accept_message(
        call,
        SendRequest(
            to=TOPIC_MARK + body.topic.removeprefix(TOPIC_MARK),
            message=body.message,
            priority=body.priority,
            meta=body.meta,
            reply_to_id=body.reply_to_id,
            mentions=body.mentions,
            client_message_id=body.client_message_id,
            supersedes=body.supersedes,
            valid_until=body.valid_until,
            failure=body.failure,
            via=body.via,
        ),
    )


async def _accept_message(call: LocalCall, request: SendRequest) -> HttpResponse:
    meters = call.context.meters
    agent = call.active_agent
    try:
        status, body = await call.mesh.sending.send(request, call.request.headers.get(_KEY_HEADER), agent=agent)
    except PosthouseError as failure:
        meters.count("posthouse_daemon_sends_total", str(failure.spec.status))
        raise
    meters.count("posthouse_daemon_sends_total", str(status))
    return json_response(body | await _pause_of_recipient(call, request.to), status)


async def _pause_of_recipient(call: LocalCall, to: str) -> dict[str, Any]:
    """Return what the sender of a message that was accepted is told of a paused recipient."""
    if "@" not in to and to not in call.context.agents.agents:
        return {}
    addresses = call.mesh.addresses
    try:
        paused = addresses.pause_of(await addresses.resolve(to))
    except PosthouseError:  # the message was accepted: a name that has just changed must not make it look refused
        return {}
    return {} if paused is None else {"recipient_paused": paused}


DEFAULT_LIMIT = 50
MAX_LIMIT = 500


class OutboxQuery(msgspec.Struct):
    status: Literal["pending", "inflight", "done", "dead", "aborted"] | None = None
    #: a name, prefix, node id or #topic
    to: str | None = None
    #: a row by its id, client_message_id or message id; only later rows are returned
    after: str | None = None
    #: as `after`; only earlier rows are returned
    before: str | None = None
    #: rows after another one come oldest first, everything else newest first
    order: Literal["oldest", "newest"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT


class RequeueBody(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    new_client_message_id: str | None = None
    message: str | None = None
    mesh: str | None = None
    #: program through which a person acts, for the journal
    via: Via | None = None


class DropBody(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    mesh: str | None = None
    via: Via | None = None


async def list_outbox(call: LocalCall) -> HttpResponse:
    """Return a page of rows over all meshes and where the next one begins."""
    arguments = call.arguments(OutboxQuery)
    is_newest_first = (arguments.order or ("newest" if arguments.after is None else "oldest")) == "newest"
    after, before = await _boundary(call, arguments.after), await _boundary(call, arguments.before)
    meshes: dict[str, str] = {}  # of rows, by their ids
    pages = []
    for node, recipient in (await resolve_in_meshes(call, arguments.to)).items():
        wanted = OutboxFilter(
            **bounds_in(node, after, before)._asdict(),
            status=arguments.status,
            destination=None if recipient is None else recipient.destination,
            to_agent=(None if recipient is None else recipient.agent) or None,
            from_agent=call.agent or None,
            is_newest_first=is_newest_first,
            limit=arguments.limit + 1,  # one more shows that there is a next page
        )
        pages.append(await node.outbox.rows(wanted))
        meshes |= dict.fromkeys((row.id for row in pages[-1]), node.mesh)
    rows = merge_by_time(pages, lambda row: row.enqueued_at_ns, newest_first=is_newest_first)
    shown = rows[: arguments.limit]
    following = shown[-1].id if len(rows) > arguments.limit else None
    return json_response({"items": [row.to_api() | {"mesh": meshes[row.id]} for row in shown], "next": following})


async def _boundary(call: LocalCall, key: str | None) -> Boundary | None:
    if key is None:
        return None
    node, row = await find_outbox_row(call, key)
    return Boundary(row.enqueued_at_ns, node.mesh, row.position)


async def show_outbox_row(call: LocalCall) -> HttpResponse:
    """Return one row with the chain of rows it was requeued from and into, oldest first."""
    node, row = await find_outbox_row(call, call.id)
    chain = await node.outbox.chain(row)
    return json_response(_row_of(node, row) | {"chain": [_row_of(node, each) for each in chain]})


async def requeue_outbox_row(call: LocalCall) -> HttpResponse:
    """Replace a dead or pending row by a new one."""
    body = await call.body(RequeueBody)
    node, row = await find_outbox_row(call, body.id)
    changes = (body.new_client_message_id, body.message)
    return json_response(await node.sending.requeue(row.id, *changes, call.agent, body.via))


async def drop_outbox_row(call: LocalCall) -> HttpResponse:
    """Abort a dead or pending row."""
    body = await call.body(DropBody)
    node, row = await find_outbox_row(call, body.id)
    await node.outbox.drop(row, body.via)
    return json_response({"aborted_row_id": row.id})


def _row_of(node: MeshNode, row: OutboxRow) -> dict[str, Any]:
    return row.to_api() | {"mesh": node.mesh}


async def withdraw_message(call: LocalCall) -> HttpResponse:
    """Take back a message of this agent, by its row, client_message_id or message id."""
    node, row = await find_outbox_row(call, (await call.body(DropBody)).id)
    return json_response(await node.sending.withdraw(row, call.agent))
