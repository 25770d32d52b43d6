"""POST /v1/send and POST /v1/topic/post: hand a message over."""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.daemon.ipc.call import Call
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.daemon.send import SendRequest
from posthouse.model.errors import PosthouseError

_KEY_HEADER = "Idempotency-Key"


class _Post(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    message: str
    priority: str | None = None
    meta: dict[str, Any] | None = None
    reply_to_id: str | None = None
    mentions: list[str] | None = None
    client_message_id: str | None = None


async def send(call: Call) -> Answer:
    """Accept a message."""
    return await _accept(call, await call.body(SendRequest))


async def post(call: Call) -> Answer:
    """Accept a message to a topic."""
    given = await call.body(_Post)
    return await _accept(
        call,
        SendRequest(
            to=TOPIC_MARK + given.topic.removeprefix(TOPIC_MARK),
            message=given.message,
            priority=given.priority,
            meta=given.meta,
            reply_to_id=given.reply_to_id,
            mentions=given.mentions,
            client_message_id=given.client_message_id,
        ),
    )


async def _accept(call: Call, given: SendRequest) -> Answer:
    meters = call.daemon.meters
    try:
        status, body = await call.daemon.sending.send(given, call.request.headers.get(_KEY_HEADER))
    except PosthouseError as failure:
        meters.count("posthouse_daemon_sends_total", str(failure.spec.status))
        raise
    meters.count("posthouse_daemon_sends_total", str(status))
    return json_answer(body, status)
