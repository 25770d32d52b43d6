"""Somebody between client and relay who makes it worse: answers that come late, or answers before anything is stored.

`late` holds every OK back and drops it when the relay dies, so that a kill finds events that are stored and not
answered. `hasty` says OK itself, at once, and passes the event on a moment later, as a relay with a write-behind cache
would; for the control only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
from aiohttp import web

LATE_S = 0.5  # long enough that a kill on a busy machine still finds answers held back
HASTY_S = 0.03

Manner = Literal["late", "hasty"]


@dataclass
class Between:
    """Where clients connect, and how many answers are held back now."""

    url: str = ""
    held: int = 0


@asynccontextmanager
async def between(relay: str, manner: Manner) -> AsyncIterator[Between]:
    """Stand before the relay."""
    place = Between()

    async def stream(request: web.Request) -> web.WebSocketResponse:
        client = web.WebSocketResponse()
        await client.prepare(request)
        with contextlib.suppress(aiohttp.ClientError, OSError, TypeError):
            async with aiohttp.ClientSession() as session, session.ws_connect(f"{relay}/v1/stream") as behind:
                await _pass_on(client, behind, manner, place)
        await client.close()
        return client

    app = web.Application()
    app.add_routes([web.get("/v1/stream", stream)])
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        place.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield place
    finally:
        await runner.cleanup()


async def _pass_on(
    client: web.WebSocketResponse, behind: aiohttp.ClientWebSocketResponse[bool], manner: Manner, place: Between
) -> None:
    tasks = [
        asyncio.create_task(_to_relay(client, behind, manner)),
        asyncio.create_task(_to_client(client, behind, manner, place)),
    ]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _to_relay(
    client: web.WebSocketResponse, behind: aiohttp.ClientWebSocketResponse[bool], manner: Manner
) -> None:
    async for message in client:
        answers = _answers(json.loads(message.data)) if manner == "hasty" else []
        if answers:
            await client.send_str(json.dumps(answers))
            await asyncio.sleep(HASTY_S)
        await behind.send_str(message.data)


async def _to_client(
    client: web.WebSocketResponse, behind: aiohttp.ClientWebSocketResponse[bool], manner: Manner, place: Between
) -> None:
    held: asyncio.Queue[str] = asyncio.Queue()

    async def send_held() -> None:
        while True:
            text = await held.get()
            await asyncio.sleep(LATE_S)
            place.held -= 1
            await client.send_str(text)

    sending = asyncio.create_task(send_held())
    try:
        async for message in behind:
            if not message.data.startswith(('["OK"', '[["OK"')):
                await client.send_str(message.data)
            elif manner == "late":
                held.put_nowait(message.data)
                place.held += 1
    finally:
        sending.cancel()
        place.held = 0


def _answers(frame: list[Any]) -> list[Any]:
    commands = frame if frame and isinstance(frame[0], list) else [frame]
    return [
        ["OK", command[1]["id"], True, {"id": command[1]["id"], "seq": 0, "duplicate": False}]
        for command in commands
        if command[0] == "EVENT"
    ]
