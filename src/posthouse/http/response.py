"""HTTP responses of relay and daemon as plain values, before they become aiohttp responses.

Holds the status, bytes and headers of a response, and the headers that HTTP requires beside an error status (WWW-
Authenticate, Allow, Retry-After). The body of an error (problem+json or the daemon's form) is made by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from posthouse.model.errors import PosthouseError

JSON = "application/json"
_SAFETY = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_encode = msgspec.json.Encoder(enc_hook=repr).encode


@dataclass(slots=True)
class HttpResponse:
    """What a handler returns; `response` is set when it has spoken itself, as a stream does."""

    status: int = 200
    body: bytes = b""
    media_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    response: web.StreamResponse | None = None


def json_response(value: Any, status: int = 200) -> HttpResponse:
    """Return a value as JSON."""
    return HttpResponse(status, msgspec.json.encode(value))


def error_response(failure: PosthouseError, body: Mapping[str, Any], media_type: str, realm: str) -> HttpResponse:
    """Return a failure, with the headers that HTTP asks for beside its status."""
    status = failure.spec.status
    answer = HttpResponse(status, encode_safely(body), media_type)
    if status == 401:
        answer.headers["WWW-Authenticate"] = f'Bearer realm="{realm}"'
    if status == 405:
        answer.headers["Allow"] = str(failure.fields.get("allowed", ""))
    if status in (429, 503):
        given = failure.fields.get("retry_after_s")
        answer.headers["Retry-After"] = str(max(1, math.ceil(given)) if isinstance(given, int | float) else 1)
    return answer


def encode_safely(value: Mapping[str, Any]) -> bytes:
    """Return JSON; text that has no UTF-8 is shown escaped, and what is no JSON by its repr."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        shown = {
            name: each.encode("utf-8", "backslashreplace").decode() if isinstance(each, str) else repr(each)
            for name, each in value.items()
        }
        return _encode(shown)


def to_aiohttp(answer: HttpResponse) -> web.StreamResponse:
    """Return the response of the HTTP library."""
    if answer.response is not None:
        return answer.response
    headers = {"Content-Type": answer.media_type, **_SAFETY, **answer.headers}
    return web.Response(status=answer.status, body=answer.body, headers=headers)
