"""HTTP responses as plain values, and the two formats in which servers report a PosthouseError.

    problem (relay)      RFC 9457, application/problem+json
    error object         {"error": code, "hint": ..., "detail": ..., ...fields}; the daemon and MCP

Handlers return an HttpResponse and never touch aiohttp, except those that stream: they write to the connection
themselves and return what they wrote to. Errors carry the headers that HTTP requires with a status (WWW-Authenticate,
Allow, Retry-After). Encoding an error never fails: fields that are not JSON are shown by their repr, text that is not
UTF-8 is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp.web_response import Response, StreamResponse

from posthouse.model.errors import PosthouseError

JSON = "application/json"
#: on every response: nothing here may be cached, or guessed to be HTML
SAFETY_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class HttpResponse:
    """What a handler returns."""

    status: int = 200
    body: bytes = b""
    media_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)
    #: set by a handler that has already responded, such as a stream
    response: StreamResponse | None = None


def json_response(value: Any, status: int = 200) -> HttpResponse:
    """Return a value as a JSON response."""
    return HttpResponse(status, _encode(value))


def to_aiohttp(response: HttpResponse) -> StreamResponse:
    """Return the aiohttp response of a handler's response."""
    if response.response is not None:
        return response.response
    headers = {"Content-Type": response.media_type, **SAFETY_HEADERS, **response.headers}
    return Response(status=response.status, body=response.body, headers=headers)


def to_bytes(response: HttpResponse, title: str) -> bytes:
    """Return a whole response as bytes, for a connection that is closed before any request is read."""
    head = (
        f"HTTP/1.1 {response.status} {title}\r\nContent-Type: {response.media_type}\r\n"
        f"Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + response.body


def preflight_response() -> HttpResponse:
    """Return the answer to a browser's preflight request for an allowed page."""
    headers = {
        "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE",
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID, Posthouse-Ns",
        "Access-Control-Max-Age": "600",
    }
    return HttpResponse(204, headers=headers)


def page_headers(origin: str) -> dict[str, str]:
    """Return the headers that let a page of another origin read a response; never with cookies."""
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*", "Vary": "Origin"}


PROBLEM = "application/problem+json"
_PROBLEM_REALM = "posthouse"
_encode_fields = msgspec.json.Encoder(enc_hook=repr).encode
#: turns a failure into the response of one server
ErrorFormat = Callable[[PosthouseError], HttpResponse]


class Problem(msgspec.Struct):
    """Why a request was refused (RFC 9457); fields of the case may follow."""

    type: str
    title: str
    status: int
    #: stable; docs/reference/errors.md lists all codes
    code: str
    detail: str
    hint: str


def problem_response(failure: PosthouseError) -> HttpResponse:
    """Return a failure as an RFC 9457 problem."""
    return _error_response(failure, failure.problem(), PROBLEM, _PROBLEM_REALM)


def error_object_format(realm: str) -> ErrorFormat:
    """Return the format {error, hint, detail, ...fields}; `realm` names the server in WWW-Authenticate."""

    def format_error(failure: PosthouseError) -> HttpResponse:
        body: dict[str, Any] = {"error": failure.code, "hint": failure.hint, "detail": str(failure)}
        for name, value in failure.fields.items():
            body.setdefault(name, value)
        return _error_response(failure, body, JSON, realm)

    return format_error


def _error_response(failure: PosthouseError, body: Mapping[str, Any], media_type: str, realm: str) -> HttpResponse:
    status = failure.spec.status
    response = HttpResponse(status, encode_safely(body), media_type)
    if status == 401:
        response.headers["WWW-Authenticate"] = f'Bearer realm="{realm}"'
    if status == 405:
        response.headers["Allow"] = str(failure.fields.get("allowed", ""))
    if status in (429, 503):
        wait_s = failure.fields.get("retry_after_s")
        response.headers["Retry-After"] = str(max(1, math.ceil(wait_s)) if isinstance(wait_s, int | float) else 1)
    return response


def encode_safely(value: Mapping[str, Any]) -> bytes:
    """Return JSON; text that is not UTF-8 is escaped, and a value that is not JSON is shown by its repr."""
    try:
        return _encode_fields(value)
    except UnicodeEncodeError:
        escaped = {
            name: each.encode("utf-8", "backslashreplace").decode() if isinstance(each, str) else repr(each)
            for name, each in value.items()
        }
        return _encode_fields(escaped)
