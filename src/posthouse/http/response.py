"""HTTP responses as plain values, before they become aiohttp responses or bytes on a connection.

Handlers return an HttpResponse and never touch aiohttp, except those that stream: they write to the connection
themselves and return what they wrote to. Error responses are built in posthouse.http.problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

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
    response: web.StreamResponse | None = None


def json_response(value: Any, status: int = 200) -> HttpResponse:
    """Return a value as a JSON response."""
    return HttpResponse(status, _encode(value))


def to_aiohttp(response: HttpResponse) -> web.StreamResponse:
    """Return the aiohttp response of a handler's response."""
    if response.response is not None:
        return response.response
    headers = {"Content-Type": response.media_type, **SAFETY_HEADERS, **response.headers}
    return web.Response(status=response.status, body=response.body, headers=headers)


def to_bytes(response: HttpResponse, title: str) -> bytes:
    """Return a whole response as bytes, for a connection that is closed before any request is read."""
    head = (
        f"HTTP/1.1 {response.status} {title}\r\nContent-Type: {response.media_type}\r\n"
        f"Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + response.body
