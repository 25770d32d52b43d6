"""The daemon's end of the pipe of `posthouse mcp`: one HTTP request whose body and response are lines of JSON-RPC.

Both directions are open at once. Requests run side by side, so a waiting call holds up no other. When the pipe closes,
its program is gone and every running call is cancelled; when only its input has ended, the running calls still get
their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp.web_exceptions import HTTPException
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from posthouse.http.call import Call
from posthouse.http.response import HttpResponse
from posthouse.mcp import protocol
from posthouse.mcp.protocol import LINE_MAX_BYTES, Message, ProtocolError
from posthouse.mcp.server import McpServer, McpSession

MEDIA_TYPE = "application/x-ndjson"


class PipeQuery(msgspec.Struct):
    """The query parameters with which a pipe describes itself."""

    #: process that started the pipe
    pid: int
    #: requested name of the agent
    as_: str | None = msgspec.field(default=None, name="as")
    #: mesh that the tools use; None: the default one of the daemon
    mesh: str | None = None
    #: name of the program, if the pipe already knows it
    program: str | None = None
    #: directory that the program works in
    project: str | None = None
    #: the same for every connection of one pipe
    key: str | None = None


async def serve_pipe(call: Call[Any]) -> HttpResponse:
    """Answer the messages of one pipe until it ends."""
    given = call.arguments(PipeQuery)
    server: McpServer = call.context.mcp
    session = McpSession(
        server,
        name=given.as_,
        mesh=given.mesh,
        program=given.program,
        pid=given.pid,
        project=given.project,
        key=given.key,
    )
    if given.program is not None:
        await session.introduce()
    return await _serve_lines(call.request, server, session)


async def _serve_lines(request: BaseRequest, server: McpServer, session: McpSession) -> HttpResponse:
    response = StreamResponse(headers={"Content-Type": MEDIA_TYPE})
    await response.prepare(request)
    task = asyncio.current_task()
    assert task is not None
    server.pipes.add(task)
    try:
        async with asyncio.TaskGroup() as running:
            async for line in read_lines(request):
                running.create_task(_answer(line, session, response))
    finally:
        server.pipes.discard(task)
    await response.write_eof()
    return HttpResponse(response=response)


async def _answer(line: bytes | None, session: McpSession, response: StreamResponse) -> None:
    async def write(message: Message) -> None:
        await response.write(protocol.encode(message) + b"\n")

    try:
        if line is None:
            raise ProtocolError(protocol.INVALID_REQUEST, protocol.TOO_LONG)
        answer = await session.answer(protocol.parse(line), write)
    except ProtocolError as failure:
        answer = protocol.error_response(None, failure)
    if answer is not None:
        await write(answer)


async def read_lines(request: BaseRequest) -> AsyncIterator[bytes | None]:
    """Yield the lines of a request's body; yield None in place of a line that is too long."""
    rest = bytearray()
    is_skipping = False
    try:
        async for chunk in request.content.iter_any():
            *lines, tail = chunk.split(b"\n")
            for line in lines:
                rest += line
                if not is_skipping and rest.strip():
                    yield bytes(rest) if len(rest) <= LINE_MAX_BYTES else None
                rest.clear()
                is_skipping = False
            rest += tail
            if len(rest) > LINE_MAX_BYTES and not is_skipping:
                is_skipping = True
                yield None
            if is_skipping:
                rest.clear()
    except (RequestPayloadError, HTTPException) as fault:  # the pipe was killed in the middle of a line
        raise ConnectionResetError("the pipe has ended") from fault
    if rest.strip():
        yield bytes(rest)
