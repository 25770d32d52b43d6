"""Answers: a status, bytes and headers, before they become a response of the HTTP library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from posthouse.model.errors import PosthouseError
from posthouse.relay.store.interface import StoredEvent

JSON = "application/json"
PROBLEM = "application/problem+json"
_SAFETY = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Answer:
    """What a handler returns; `response` is set when it has spoken itself, as a stream does."""

    status: int = 200
    body: bytes = b""
    media_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    response: web.StreamResponse | None = None


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return a value as JSON."""
    return Answer(status, _encode(value))


def problem_answer(failure: PosthouseError) -> Answer:
    """Return the RFC 9457 problem of a failure, with the headers that HTTP asks for beside its status."""
    answer = Answer(failure.spec.status, encode_problem(failure), PROBLEM)
    if failure.spec.status == 401:
        answer.headers["WWW-Authenticate"] = 'Bearer realm="posthouse"'
    if failure.spec.status == 405:
        answer.headers["Allow"] = str(failure.fields.get("allowed", ""))
    if failure.spec.status in (429, 503):
        answer.headers["Retry-After"] = str(_retry_after_s(failure))
    return answer


def encode_problem(failure: PosthouseError) -> bytes:
    """Return a problem as JSON; text that has no UTF-8 is shown escaped."""
    problem = failure.problem()
    try:
        return _encode(problem)
    except UnicodeEncodeError:
        shown = {
            name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
            for name, value in problem.items()
        }
        return _encode(shown)


def stored_event(event: StoredEvent) -> bytes:
    """Return a stored event as JSON: the event's own fields, and its seq."""
    return b'%b,"seq":%d}' % (event.raw[:-1], event.seq)


def events_answer(events: Sequence[StoredEvent], cursor: str | None) -> Answer:
    """Return a page of events, from bytes that were serialised when they were accepted."""
    body = b'{"events":[%b],"cursor":%b}' % (b",".join(map(stored_event, events)), _encode(cursor))
    return Answer(200, body)


def to_response(answer: Answer) -> web.StreamResponse:
    """Return the response of the HTTP library."""
    if answer.response is not None:
        return answer.response
    headers = {"Content-Type": answer.media_type, **_SAFETY, **answer.headers}
    return web.Response(status=answer.status, body=answer.body, headers=headers)


def _retry_after_s(failure: PosthouseError) -> int:
    given = failure.fields.get("retry_after_s")
    return max(1, math.ceil(given)) if isinstance(given, int | float) else 1
