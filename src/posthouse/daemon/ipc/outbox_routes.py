"""Routes for outgoing messages: POST /v1/send, POST /v1/topic/post, and /v1/outbox.

Sending answers once the message is in the outbox. An operator can list rows, inspect one with its chain, requeue or
drop it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import msgspec

from posthouse.daemon import request_fields
from posthouse.daemon.context import LocalCall
from posthouse.daemon.ipc import merged
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.outbox.outbox import OutboxFilter
from posthouse.daemon.outbox.outbox_rows import OutboxRow
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.daemon.send import MessageFields, SendRequest, SendResult, Via
from posthouse.daemon.wake.transcripts import Transcript
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.errors import PosthouseError
from posthouse.model.usage import USAGE, with_usage
from posthouse.tracing import TRACEPARENT

_KEY_HEADER = "Idempotency-Key"


class PostBody(MessageFields, kw_only=True):
    topic: request_fields.Topic


async def send_message(call: LocalCall) -> HttpResponse:
    """Accept a message."""
    return await _accept_message(call, await call.body(SendRequest))


async def post_to_topic(call: LocalCall) -> HttpResponse:
    """Accept a message to a topic."""
    body = await call.body(PostBody)
    fields = {name: getattr(body, name) for name in MessageFields.__struct_fields__}
    return await _accept_message(call, SendRequest(to=TOPIC_MARK + body.topic.removeprefix(TOPIC_MARK), **fields))


async def _accept_message(call: LocalCall, request: SendRequest) -> HttpResponse:
    meters = call.context.meters
    agent, key = call.active_agent, call.request.headers.get(_KEY_HEADER)
    transcript = None if request.via is not None else call.context.waker.transcript_of(agent)
    try:
        if transcript is None or USAGE in (request.meta or {}):
            status, body = await _send(call, request, key, agent)
        else:
            async with _with_transcript_usage(call, request, key, agent, transcript) as complete:
                status, body = await _send(call, complete, key, agent)
    except PosthouseError as failure:
        meters.count("posthouse_daemon_sends_total", str(failure.spec.status))
        raise
    meters.count("posthouse_daemon_sends_total", str(status))
    return json_response(body | await _about_recipient(call, request.to), status)


async def _send(call: LocalCall, request: SendRequest, key: str | None, agent: str) -> SendResult:
    traceparent = call.request.headers.get(TRACEPARENT)
    return await call.mesh.sending.send(request, key, agent=agent, traceparent=traceparent)


@asynccontextmanager
async def _with_transcript_usage(
    call: LocalCall, request: SendRequest, key: str | None, agent: str, transcript: Transcript
) -> AsyncIterator[SendRequest]:
    """Add the program's usage since the agent's last message to a message that does not report usage itself.

    A repeated request reports the same usage as the first time; otherwise it would look like another message.
    """
    known = key if key is not None else request.client_message_id
    if known is not None and await call.mesh.outbox.has(known, agent):
        earlier = await call.mesh.sending.usage_of(known, agent)
        yield msgspec.structs.replace(request, meta=with_usage(request.meta, earlier))
        return
    usage = await asyncio.to_thread(transcript.take)
    try:
        yield request if usage is None else msgspec.structs.replace(request, meta=with_usage(request.meta, usage))
    except BaseException:
        if usage is not None:
            transcript.give_back(usage)
        raise


async def _about_recipient(call: LocalCall, to: str) -> dict[str, Any]:
    """Return the fields of the answer about a paused agent or an unknown topic."""
    if to.startswith(TOPIC_MARK):
        is_known = to.removeprefix(TOPIC_MARK) in call.mesh.roster.topics
        return {} if is_known else {"topic_unverified": True}
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
    to: request_fields.Destination | None = None
    #: only later rows are returned
    after: request_fields.RowBoundary | None = None
    #: only earlier rows are returned
    before: request_fields.RowBoundary | None = None
    #: rows after another one come oldest first, everything else newest first
    order: Literal["oldest", "newest"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT


class RequeueBody(msgspec.Struct, forbid_unknown_fields=True):
    id: request_fields.RowKey
    new_client_message_id: request_fields.ClientMessageId | None = None
    message: request_fields.MessageText | None = None
    mesh: request_fields.MeshName | None = None
    #: program through which a person acts, for the journal
    via: Via | None = None


class DropBody(msgspec.Struct, forbid_unknown_fields=True):
    id: request_fields.RowKey
    mesh: request_fields.MeshName | None = None
    via: Via | None = None


async def list_outbox(call: LocalCall) -> HttpResponse:
    """Return a page of rows over all meshes and where the next one begins."""
    arguments = call.arguments(OutboxQuery)
    is_newest_first = (arguments.order or ("newest" if arguments.after is None else "oldest")) == "newest"
    after, before = await _boundary(call, arguments.after), await _boundary(call, arguments.before)
    meshes: dict[str, str] = {}  # of rows, by their ids
    pages, ends = [], {}
    for node, recipient in (await merged.resolve_in_meshes(call, arguments.to)).items():
        wanted = OutboxFilter(
            **merged.bounds_in(node, after, before)._asdict(),
            status=arguments.status,
            destination=None if recipient is None else recipient.destination,
            to_agent=(None if recipient is None else recipient.agent) or None,
            from_agent=call.agent or None,
            is_newest_first=is_newest_first,
            limit=arguments.limit + 1,  # one more shows that there is a next page
        )
        ends[node.mesh] = 0 if is_newest_first else await node.outbox.newest_position()
        pages.append(await node.outbox.rows(wanted))
        meshes |= dict.fromkeys((row.id for row in pages[-1]), node.mesh)
    rows = merged.merge_by_time(pages, lambda row: row.enqueued_at_ns, newest_first=is_newest_first)
    following = merged.next_page(rows, arguments.limit, lambda row: meshes[row.id], ends, newest_first=is_newest_first)
    shown = [row.to_api() | {"mesh": meshes[row.id]} for row in rows[: arguments.limit]]
    return json_response({"items": shown, "next": following})


async def _boundary(call: LocalCall, key: str | None) -> merged.Boundary | None:
    page_end = None if key is None else merged.read_page_end(key)
    if key is None or page_end is not None:
        return page_end
    node, row = await merged.find_outbox_row(call, key)
    return merged.Boundary({node.mesh: row.position}, row.enqueued_at_ns)


async def show_outbox_row(call: LocalCall) -> HttpResponse:
    """Return one row with the chain of rows it was requeued from and into, oldest first."""
    node, row = await merged.find_outbox_row(call, call.id)
    chain = await node.outbox.chain(row)
    return json_response(_row_of(node, row) | {"chain": [_row_of(node, each) for each in chain]})


async def requeue_outbox_row(call: LocalCall) -> HttpResponse:
    """Replace a dead or pending row by a new one."""
    body = await call.body(RequeueBody)
    node, row = await merged.find_outbox_row(call, body.id)
    changes = (body.new_client_message_id, body.message)
    return json_response(await node.sending.requeue(row.id, *changes, call.agent, body.via))


async def drop_outbox_row(call: LocalCall) -> HttpResponse:
    """Abort a dead or pending row."""
    body = await call.body(DropBody)
    node, row = await merged.find_outbox_row(call, body.id)
    await node.outbox.drop(row, body.via)
    return json_response({"aborted_row_id": row.id})


def _row_of(node: MeshNode, row: OutboxRow) -> dict[str, Any]:
    return row.to_api() | {"mesh": node.mesh}


async def withdraw_message(call: LocalCall) -> HttpResponse:
    """Take back a message of this agent, by its row, client_message_id or message id."""
    node, row = await merged.find_outbox_row(call, (await call.body(DropBody)).id)
    return json_response(await node.sending.withdraw(row, call.agent))
