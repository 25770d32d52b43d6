"""The link closes every connection that it made, also one that is lost or still being made when the link is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from posthouse.client.failures import Backoff
from posthouse.client.stream.connection import Link
from posthouse.model.errors import PosthouseError


class LostConnection:
    """A connection that is lost at once, and whose writer takes a while to end."""

    close_code, close_reason = None, ""

    def __init__(self) -> None:
        self.features: dict[str, Any] = {}
        self.is_ending = asyncio.Event()
        self.is_closed = False

    async def read(self, _handlers: Any, _on_first_frame: Callable[[], None], *, is_verifying: bool) -> None:
        """Return as if the relay had gone."""

    async def write(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_ending.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    async def close(self) -> None:
        self.is_closed = True


def link_over(dial: Any) -> Link:
    return Link(dial, Backoff(1, 1), "http://relay", is_verifying=True)


async def test_connection_that_is_lost_while_the_link_is_closed_is_closed() -> None:
    connection = LostConnection()

    async def dial() -> LostConnection:
        return connection

    link = link_over(dial)
    await link.start()
    await connection.is_ending.wait()
    await link.close()
    assert connection.is_closed


async def test_connection_that_is_made_after_the_link_was_closed_is_closed() -> None:
    connection, is_closed = LostConnection(), asyncio.Event()

    async def dial() -> LostConnection:
        await is_closed.wait()
        return connection

    link = link_over(dial)
    starting = asyncio.create_task(link.start())
    await asyncio.sleep(0)
    await link.close()
    is_closed.set()
    with pytest.raises(PosthouseError) as refused:
        await starting
    assert refused.value.code == "client_closed" and connection.is_closed and not link.is_up
