"""Answers of the local interface: JSON, and refusals as {error, hint, ...}."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from posthouse.model.errors import PosthouseError

JSON = "application/json"
_SAFETY = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Answer:
    """What a route returns; `response` is set when it has spoken itself, as a stream does."""

    status: int = 200
    body: bytes = b""
    media_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    response: web.StreamResponse | None = None


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return a value as JSON."""
    return Answer(status, _encode(value))


def refusal(failure: PosthouseError) -> Answer:
    """Return a failure as {error, hint, detail, ...} with the fields of the case."""
    fields = {name: value for name, value in failure.fields.items() if name not in ("error", "hint", "detail")}
    body = {"error": failure.code, "hint": failure.hint, "detail": str(failure)} | fields
    answer = Answer(failure.spec.status, encode_safely(body))
    if failure.spec.status == 401:
        answer.headers["WWW-Authenticate"] = 'Bearer realm="posthouse daemon"'
    if failure.spec.status == 405:
        answer.headers["Allow"] = str(failure.fields.get("allowed", ""))
    if failure.spec.status in (429, 503):
        given = failure.fields.get("retry_after_s")
        answer.headers["Retry-After"] = str(max(1, math.ceil(given)) if isinstance(given, int | float) else 1)
    return answer


def encode_safely(value: dict[str, Any]) -> bytes:
    """Return JSON; text that has no UTF-8 is shown escaped, and what is no JSON by its repr."""
    try:
        return msgspec.json.encode(value, enc_hook=repr)
    except UnicodeEncodeError:
        shown = {
            name: each.encode("utf-8", "backslashreplace").decode() if isinstance(each, str) else repr(each)
            for name, each in value.items()
        }
        return _encode(shown)


def to_response(answer: Answer) -> web.StreamResponse:
    """Return the response of the HTTP library."""
    if answer.response is not None:
        return answer.response
    headers = {"Content-Type": answer.media_type, **_SAFETY, **answer.headers}
    return web.Response(status=answer.status, body=answer.body, headers=headers)
