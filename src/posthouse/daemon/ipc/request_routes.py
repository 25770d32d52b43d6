"""GET /v1/answers/{id}: the answers to a request that this host has sent, as they arrive.

A program sends a request with POST /v1/send and then polls here until the request is over: a final answer, a refusal of
the responder, or the deadline. Answers that are returned count as read. Asking again from an earlier position returns
them again, so a lost response loses no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec

from posthouse.client.daemon.local_api import Answers
from posthouse.daemon.context import LocalCall
from posthouse.daemon.inbox.inbox_items import InboxItem
from posthouse.daemon.ipc.merged import find_outbox_row
from posthouse.daemon.mesh_node import MeshNode
from posthouse.daemon.outbox.outbox_rows import OutboxRow
from posthouse.http.response import HttpResponse, json_response
from posthouse.model.errors import error
from posthouse.model.event import decode_event
from posthouse.model.limits import INT64_MAX, SECOND_NS
from posthouse.model.message import Message, read_message
from posthouse.model.message_api import Answer
from posthouse.model.outbox_rules import OutboxStatus
from posthouse.model.request import AnswerState, message_meta, read_answer_state, read_request

MAX_WAIT_S = 600.0
_LOOK_S = 1.0  # between checks of the outbox while no answer comes: a refused request ends the wait


class AnswersQuery(msgspec.Struct, forbid_unknown_fields=True):
    #: only answers after this position
    after: Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)] = 0
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 0.0


async def list_answers(call: LocalCall) -> HttpResponse:
    """Return the answers to a request; with wait_s, wait for the first one if there is none."""
    arguments = call.arguments(AnswersQuery)
    node, row = await find_outbox_row(call, call.id)
    request, deadline_ns = await _read_request(node, row)
    has_arrived = asyncio.Event()

    def wake(_items: Sequence[InboxItem]) -> None:
        has_arrived.set()

    context = call.context
    node.inbox.on_new.append(wake)
    try:
        with call.waiting(context.waiters):
            until_s = asyncio.get_running_loop().time() + arguments.wait_s
            while True:
                has_arrived.clear()
                items = await _answers(node, row, request, arguments.after)
                left_s = (deadline_ns - context.clock.wall_ns()) / SECOND_NS
                wait_s = min(until_s - asyncio.get_running_loop().time(), left_s, _LOOK_S)
                if items or wait_s <= 0 or context.is_stopping:
                    break
                _check_alive(await node.outbox.find(row.id, call.agent), row.destination)
                await context.wait_for(has_arrived, wait_s)
    finally:
        node.inbox.on_new.remove(wake)
    if items:
        await node.inbox.mark_seen([item.id for item in items], row.from_agent)
    shown = [_shown(item) for item in items]
    is_over = left_s <= 0 or any(each.state is not AnswerState.PARTIAL for each in shown)
    return json_response(Answers(shown, items[-1].position if items else arguments.after, is_over))


async def _read_request(node: MeshNode, row: OutboxRow) -> tuple[Message, int]:
    """Return a request that was sent, and its deadline."""
    raw = await node.outbox.event_of(row)
    message = None if raw is None else read_message(decode_event(raw))
    mark = None if message is None else read_request(message_meta(message))
    if message is None or mark is None:
        raise error("request_malformed", reason=f"{row.id} was not sent as a request, or it is too old")
    return message, mark.deadline_ns


async def _answers(node: MeshNode, row: OutboxRow, request: Message, after: int) -> list[InboxItem]:
    """Return the answers of the agent that was asked; any agent may answer a request to a topic."""
    found = await node.inbox.answers(row.message_id, row.from_agent, after)
    if request.recipient is None:
        return found
    return [item for item in found if (item.sender, item.from_agent) == (request.recipient, request.to_agent)]


def _check_alive(row: OutboxRow, to: str) -> None:
    """Raise request_failed if the message of a request will never be sent."""
    if row.status in (OutboxStatus.DEAD, OutboxStatus.ABORTED):
        raise error("request_failed", subject=to, reason=row.last_error or "it was dropped from the outbox")


def _shown(item: InboxItem) -> Answer:
    meta = msgspec.json.decode(item.meta) if item.meta else None
    return Answer(
        state=read_answer_state(meta),
        message_id=item.message_id,
        sender=item.sender,
        sender_name=item.sender_name,
        from_agent=item.from_agent,
        body=item.body,
        meta=meta,
        undecryptable=item.undecryptable,
    )
