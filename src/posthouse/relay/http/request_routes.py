"""POST /v1/request: send a message as a request and stream its answers, one JSON object per line.

    {"type": "accepted", "id", "seq", "duplicate", "client_message_id"}     first
    {"type": "partial", "event": {..., "seq"}}                              any number
    {"type": "final" | "busy" | "failed" | "no_responder", "event": {...}}   last
    {"type": "expired"}                                                     last, if the deadline comes first
    {"type": "stopping"}                                                    last, if the relay stops first

A refusal before the first line is a problem with its status. An empty line means that the relay still waits. The same
request sent again is the same message: its caller gets the stored answers and waits for the rest.
"""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from aiohttp.web_response import StreamResponse

from posthouse.http.response import SAFETY_HEADERS, HttpResponse
from posthouse.http.router import Route
from posthouse.model.api import AnswerLine
from posthouse.model.errors import error
from posthouse.model.event import Event
from posthouse.model.limits import SECOND_NS
from posthouse.model.message import Message, read_message
from posthouse.model.request import REQUEST_MAX_S, AnswerState, RequestMark, RequestMode, message_meta, read_request
from posthouse.model.strict_json import write_ns_as_text
from posthouse.relay.context import RelayCall, wants_ns_as_text
from posthouse.relay.http.schemas import stored_event
from posthouse.relay.messages.open_requests import OpenRequest
from posthouse.relay.store.event_rows import StoredEvent
from posthouse.relay.wire.accept_results import Accepted, Declined

_KEEP_ALIVE_S = 10.0
_LOOK_S = 0.5  # between checks whether the relay stops
_WRITE_S = 30.0
_HEADERS = {**SAFETY_HEADERS, "Content-Type": "application/x-ndjson", "X-Accel-Buffering": "no"}


class RequestBody(msgspec.Struct, forbid_unknown_fields=True):
    """A message whose meta has `request` and `valid_until`, signed by the caller."""

    event: Event


async def send_request(call: RelayCall) -> HttpResponse:
    """Accept a request and stream its answers until it is over."""
    node, event = call.node, (await call.body(RequestBody)).event
    message, mark = _read(event, node, call.context.clock.wall_ns())
    requests = call.context.engine.requests
    await _check_responder(call, event.id, message, mark)
    with requests.wait(event.id, node, message) as waiting:
        accepted = await _accept(call, event)
        if accepted.id != event.id:  # the same request was sealed again: answers name the first message
            with requests.wait(accepted.id, node, message) as first:
                return await _stream(call, accepted, first, mark)
        return await _stream(call, accepted, waiting, mark)


def _read(event: Event, node: str, now_ns: int) -> tuple[Message, RequestMark]:
    """Return the message of a request and its mark, or raise an error if it is not a request of this caller."""
    if event.pubkey != node:
        raise error("request_malformed", reason="its author is not the caller, which gets the answers")
    message = read_message(event)
    mark = read_request(message_meta(message))
    if mark is None:
        raise error("request_malformed", reason="its meta lacks request or valid_until")
    left_s = (mark.deadline_ns - now_ns) / SECOND_NS
    if left_s <= 0:
        raise error("request_timeout", subject=message.recipient or f"#{message.destination_ref}", timeout_s=0)
    if left_s > REQUEST_MAX_S:
        raise error("request_malformed", reason=f"its deadline is more than {REQUEST_MAX_S:g} s ahead")
    return message, mark


async def _check_responder(call: RelayCall, message_id: str, message: Message, mark: RequestMark) -> None:
    """Raise no_responder for a new request that must not wait, if no node is connected that could answer it."""
    engine = call.context.engine
    if mark.mode is RequestMode.QUEUE or engine.sessions.has_responder(message.mesh, message.recipient, call.node):
        return
    if not await engine.store.known([message_id]):
        to = message.recipient or f"#{message.destination_ref}"
        raise error("no_responder", subject=to, reason="it has no open connection to the relay")


async def _accept(call: RelayCall, event: Event) -> Accepted:
    answer = await call.context.engine.accept(msgspec.json.encode(event), call.payer)
    if isinstance(answer, Declined):
        raise answer.error
    return answer


async def _stream(call: RelayCall, accepted: Accepted, waiting: OpenRequest, mark: RequestMark) -> HttpResponse:
    response = StreamResponse(headers=_HEADERS)
    await response.prepare(call.request)
    with contextlib.suppress(ConnectionResetError):  # the caller has gone
        await _write(response, msgspec.json.encode({"type": "accepted"} | msgspec.to_builtins(accepted)))
        if accepted.duplicate and accepted.seq is not None:
            await call.context.engine.requests.offer_stored(accepted.id, accepted.seq, waiting)
        await _write(response, await _send_answers(call, response, waiting, mark))
        await response.write_eof()
    return HttpResponse(response=response)


async def _send_answers(call: RelayCall, response: StreamResponse, waiting: OpenRequest, mark: RequestMark) -> bytes:
    """Send partial answers; return the last line."""
    sent: set[int] = set()
    silent_s = 0.0
    while True:
        left_s = (mark.deadline_ns - call.context.clock.wall_ns()) / SECOND_NS
        if left_s <= 0 and waiting.answers.empty():
            return b'{"type":"expired"}'
        if call.context.is_stopping:
            return b'{"type":"stopping"}'
        wait_s = max(0.0, min(left_s, _LOOK_S))
        try:
            async with asyncio.timeout(wait_s):
                answer = await waiting.answers.get()
        except TimeoutError:
            silent_s += wait_s
            if silent_s >= _KEEP_ALIVE_S:
                silent_s = 0.0
                await _write(response, b"")
            continue
        if answer.seq in sent:  # it was stored and committed at the same time
            continue
        sent.add(answer.seq)
        line = b'{"type":"%b","event":%b}' % (
            answer.state.encode(),
            stored_event(StoredEvent(answer.seq, answer.raw)),
        )
        if wants_ns_as_text(call.request):
            line = write_ns_as_text(line)
        if answer.state is not AnswerState.PARTIAL:
            return line
        await _write(response, line)


async def _write(response: StreamResponse, line: bytes) -> None:
    """Write a line; end the stream of a caller that does not read."""
    try:
        async with asyncio.timeout(_WRITE_S):
            await response.write(line + b"\n")
    except TimeoutError as fault:
        raise ConnectionResetError("the caller does not read its answers") from fault


REQUEST_ROUTES = (
    Route(
        "POST",
        "/v1/request",
        send_request,
        "Send a request and stream its answers",
        bodies=(RequestBody,),
        responses={200: AnswerLine},
        media_type="application/x-ndjson",
        may_wait=True,
    ),
)
