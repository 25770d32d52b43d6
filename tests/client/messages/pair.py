"""Two nodes of an open mesh that write to each other, and bounded waits for their messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from posthouse.client import Client, Delivery, Mailbox
from tests.client.house import House
from tests.client.waiting import PATIENCE_S


@dataclass
class Pair:
    """Alice sends, Bob reads."""

    house: House
    alice: Client
    bob: Client

    async def send_all(self, *bodies: str) -> list[str]:
        """Send bodies from Alice to Bob in order; return the ids."""
        return [(await self.alice.send(self.bob.key.node, body)).id for body in bodies]

    async def states(self, *ids: str) -> list[str]:
        """Return the states of messages with one recipient."""
        return [(await self.alice.message(each)).deliveries[0].state for each in ids]


def pair(house: House, **options: Any) -> Pair:
    """Make a pair; `options` are those of Bob's client."""
    return Pair(house, house.client(), house.client(**options))


async def some(mailbox: Mailbox, count: int) -> list[Delivery]:
    """Return the next `count` messages."""
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            taken += await mailbox.take(count - len(taken))
    return taken


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [delivery.body for delivery in deliveries]


@asynccontextmanager
async def opened(client: Client, **options: Any) -> AsyncIterator[Mailbox]:
    """Open a mailbox within bounded time."""
    async with asyncio.timeout(PATIENCE_S):
        mailbox = await client.receive(**options)
    async with mailbox:
        yield mailbox
