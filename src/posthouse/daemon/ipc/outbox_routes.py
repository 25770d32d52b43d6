"""Routes for outgoing messages: POST /v1/send, POST /v1/topic/post, and /v1/outbox.

Sending answers once the message is in the outbox. An operator can list rows, inspect one with its chain, requeue or
drop it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from posthouse.daemon.context import LocalCall
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.daemon.send import SendRequest
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.errors import PosthouseError

_KEY_HEADER = "Idempotency-Key"


class _PostBody(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    message: str
    priority: str | None = None
    meta: dict[str, Any] | None = None
    reply_to_id: str | None = None
    mentions: list[str] | None = None
    client_message_id: str | None = None


async def send_message(call: LocalCall) -> HttpResponse:
    """Accept a message."""
    return await _accept_message(call, await call.body(SendRequest))


async def post_to_topic(call: LocalCall) -> HttpResponse:
    """Accept a message to a topic."""
    body = await call.body(_PostBody)
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
        ),
    )


async def _accept_message(call: LocalCall, request: SendRequest) -> HttpResponse:
    meters = call.context.meters
    try:
        status, body = await call.context.sending.send(request, call.request.headers.get(_KEY_HEADER))
    except PosthouseError as failure:
        meters.count("posthouse_daemon_sends_total", str(failure.spec.status))
        raise
    meters.count("posthouse_daemon_sends_total", str(status))
    return json_response(body, status)


DEFAULT_LIMIT = 50
MAX_LIMIT = 500


class _OutboxQuery(msgspec.Struct):
    status: Literal["pending", "inflight", "done", "dead", "aborted"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT


class _RequeueBody(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    new_client_message_id: str | None = None
    message: str | None = None


class _DropBody(msgspec.Struct, forbid_unknown_fields=True):
    id: str


async def list_outbox(call: LocalCall) -> HttpResponse:
    """Return rows, newest first."""
    arguments = call.arguments(_OutboxQuery)
    rows = await call.context.outbox.rows(arguments.status, arguments.limit)
    return json_response({"items": [row.to_api() for row in rows]})


async def show_outbox_row(call: LocalCall) -> HttpResponse:
    """Return one row with the chain of rows it was requeued from and into, oldest first."""
    row = await call.context.outbox.find(call.id)
    chain = await call.context.outbox.chain(row)
    return json_response(row.to_api() | {"chain": [each.to_api() for each in chain]})


async def requeue_outbox_row(call: LocalCall) -> HttpResponse:
    """Replace a dead or pending row by a new one."""
    body = await call.body(_RequeueBody)
    answer = await call.context.sending.requeue(body.id, body.new_client_message_id, body.message)
    return json_response(answer)


async def drop_outbox_row(call: LocalCall) -> HttpResponse:
    """Abort a dead or pending row."""
    row = await call.context.outbox.find((await call.body(_DropBody)).id)
    await call.context.outbox.drop(row)
    return json_response({"aborted_row_id": row.id})
