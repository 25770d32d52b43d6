"""Somebody between a program and its daemon who makes it worse.

`forgetful` passes every send on and loses some of the answers, so that the program does not know and sends again.
`hasty` says 202 itself, at once, and passes the send on a moment later, as a daemon that answers before its commit
would; for the control only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Literal

import aiohttp
from aiohttp import web

from posthouse.model.address import AGENT_HEADER

LOSES_EVERY = 7  # of the answers; prime, so that no pattern of the sends hides it
HELD_S = 0.2

Manner = Literal["forgetful", "hasty"]


@asynccontextmanager
async def between(daemon: Path, folder: Path, manner: Manner) -> AsyncIterator[Path]:
    """Stand before the daemon in a directory; yields the directory for programs."""
    await asyncio.to_thread(folder.mkdir, parents=True)
    numbers, held = count(1), set[asyncio.Task[None]]()
    connector = aiohttp.UnixConnector(str(daemon / "sock"), force_close=True)

    async with aiohttp.ClientSession(connector=connector) as session:

        async def pass_on(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            if manner == "hasty" and request.path == "/v1/send":
                _hold(held, session, request, body)
                return web.json_response({"client_message_id": "x", "status": "queued"}, status=202)
            try:
                url, headers = f"http://localhost{request.path_qs}", _passed(request)
                async with session.request(request.method, url, data=body, headers=headers) as answer:
                    status, told = answer.status, await answer.read()
            except (aiohttp.ClientError, OSError):
                status, told = 0, b""
            if not status or (manner == "forgetful" and not next(numbers) % LOSES_EVERY):
                assert request.transport is not None
                request.transport.abort()
            return web.Response(status=status or 500, body=told, content_type="application/json")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.UnixSite(runner, str(folder / "sock")).start()
        try:
            yield folder
        finally:
            await runner.cleanup()
            for task in held:
                task.cancel()


def _passed(request: web.Request) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name == AGENT_HEADER}


def _hold(held: set[asyncio.Task[None]], session: aiohttp.ClientSession, request: web.Request, body: bytes) -> None:
    url, headers = f"http://localhost{request.path}", _passed(request)

    async def later() -> None:
        await asyncio.sleep(HELD_S)
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with session.post(url, data=body, headers=headers):
                pass

    task = asyncio.create_task(later())
    held.add(task)
    task.add_done_callback(held.discard)
