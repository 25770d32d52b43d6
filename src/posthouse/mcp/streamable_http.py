"""MCP over streamable HTTP: one POST per message, for programs that do not start `posthouse mcp` themselves.

The server keeps nothing between requests that a restart would lose: a session id is the name of its agent and a random
part, and any well-formed one is accepted, because the token has already authorized the caller to use the tools. A
response is plain JSON unless the call reports progress; then it is a stream of events that ends with the response. A
client that disconnects cancels its call. The server never sends unprompted, so there is no stream to GET.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from typing import Any

import msgspec
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from posthouse.http.call import Call
from posthouse.http.response import SAFETY_HEADERS, HttpResponse
from posthouse.mcp import protocol
from posthouse.mcp.protocol import Message, ProtocolError
from posthouse.mcp.server import McpServer, McpSession
from posthouse.model.errors import error
from posthouse.model.limits import MIB
from posthouse.tracing import TRACEPARENT, continuing

PATH = "/mcp"
BODY_MAX_BYTES = MIB
SESSION_HEADER = "Mcp-Session-Id"
_VERSION_HEADER = "MCP-Protocol-Version"
_EVENTS = "text/event-stream"
_SESSION = re.compile(r"([a-z0-9][a-z0-9-]{0,31})\.[0-9a-f]{32}")
_WRAPPED = re.compile(r"=\?base64\?(.*)\?=")
#: JSON-RPC code -> status, for requests of the stateless versions
_STATUS = {
    protocol.PARSE_ERROR: 400,
    protocol.INVALID_REQUEST: 400,
    protocol.INVALID_PARAMS: 400,
    protocol.HEADER_MISMATCH: 400,
    protocol.UNSUPPORTED_VERSION: 400,
    protocol.METHOD_NOT_FOUND: 404,
}


class HttpQuery(msgspec.Struct):
    """The query parameters of the endpoint."""

    #: name of the agent
    as_: str | None = msgspec.field(default=None, name="as")


async def post_message(call: Call[Any]) -> HttpResponse:
    """Answer one message."""
    server: McpServer = call.context.mcp
    name = call.arguments(HttpQuery).as_
    try:
        message = protocol.parse(await call.read(BODY_MAX_BYTES))
        is_stateless = check_headers(call.request, message)
    except ProtocolError as failure:
        return HttpResponse(400, protocol.encode(protocol.error_response(None, failure)))
    if is_stateless:
        session = McpSession(server, name=name, program=_program_of(message))
        return await _Exchange(call.request, has_status=True).answer(session, message)
    return await _answer_in_session(call.request, server, message, name)


async def delete_session(call: Call[Any]) -> HttpResponse:
    """End a session: its running calls are cancelled."""
    server: McpServer = call.context.mcp
    session = server.http_sessions.get(call.request.headers.get(SESSION_HEADER, ""))
    if session is not None:
        session.cancel_all()
    return HttpResponse(204)


async def _answer_in_session(
    request: BaseRequest, server: McpServer, message: Message, name: str | None
) -> HttpResponse:
    given = request.headers.get(SESSION_HEADER)
    found = None if given is None else _SESSION.fullmatch(given)
    if given is not None and found is None:
        raise error("mcp_session_unknown")
    session = server.http_sessions.get(given or "")
    if session is None:
        session = McpSession(server, name=found[1] if found else name, program=_program_of(message))
    session_id = given or f"{session.wanted_name}.{secrets.token_hex(16)}"
    server.http_sessions[session_id] = session
    try:
        response = await _Exchange(request).answer(session, message)
    finally:
        if not session.running:
            server.http_sessions.pop(session_id, None)
    if message.get("method") == "initialize":
        response.headers[SESSION_HEADER] = session_id
    return response


def _program_of(message: Message) -> str | None:
    return protocol.client_name(message) if protocol.is_request(message) else None


class _Exchange:
    """One request and its response, which becomes a stream with the first notification."""

    def __init__(self, request: BaseRequest, *, has_status: bool = False) -> None:
        self._request = request
        self._has_status = has_status
        self._stream: StreamResponse | None = None

    async def answer(self, session: McpSession, message: Message) -> HttpResponse:
        with continuing(self._request.headers.get(TRACEPARENT)):
            answer = await session.answer(message, self._notify)
        if self._stream is not None:
            if answer is not None:
                await self._write(self._stream, answer)
            await self._stream.write_eof()
            return HttpResponse(response=self._stream)
        if answer is None:
            return HttpResponse(202)
        code = answer.get("error", {}).get("code")
        return HttpResponse(_STATUS.get(code, 200) if self._has_status else 200, protocol.encode(answer))

    async def _notify(self, message: Message) -> None:
        if self._stream is None:
            if _EVENTS not in self._request.headers.get("Accept", ""):
                return
            self._stream = StreamResponse(headers={"Content-Type": _EVENTS, **SAFETY_HEADERS})
            await self._stream.prepare(self._request)
        await self._write(self._stream, message)

    async def _write(self, stream: StreamResponse, message: Message) -> None:
        await stream.write(b"event: message\ndata: " + protocol.encode(message) + b"\n\n")


def check_headers(request: BaseRequest, message: Message) -> bool:
    """Return True for a request of a stateless version; raise ProtocolError if its headers contradict its body."""
    headers = request.headers
    version = headers.get(_VERSION_HEADER)
    method = message.get("method", "")
    if not protocol.is_request(message):
        return version in protocol.STATELESS_VERSIONS
    if not protocol.is_stateless(message):
        if version is not None and version not in protocol.HANDSHAKE_VERSIONS:
            raise ProtocolError(
                protocol.INVALID_REQUEST, f"the version in {_VERSION_HEADER} needs _meta in the request"
            )
        return False
    expected = {_VERSION_HEADER: protocol.meta_of(message)[protocol.VERSION_META], "Mcp-Method": method}
    if method == "tools/call":
        expected["Mcp-Name"] = protocol.params_of(message).get("name")
    for name, value in expected.items():
        given = headers.getall(name, [])
        if len(given) != 1 or _unwrapped(given[0]) != value:
            raise ProtocolError(protocol.HEADER_MISMATCH, f"the header {name} contradicts the request")
    return True


def _unwrapped(value: str) -> str | None:
    """Return a header's text, decoded if it is wrapped in base64; None if that is invalid."""
    wrapped = _WRAPPED.fullmatch(value)
    if wrapped is None:
        return value
    try:
        return base64.b64decode(wrapped[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
