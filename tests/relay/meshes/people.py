"""Members of the mesh `team` of a running relay, as their clients, and what they do with keys and messages."""

from __future__ import annotations

import asyncio

from posthouse.client import Client, Delivery, Pins
from posthouse.keys import NodeKey
from tests.client.house import QUICK
from tests.relay.edge import PATIENCE_S, Edge


class People:
    """Clients of one relay, which end with the test."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self._open: list[Client] = []

    def client(self, key: NodeKey, pins: Pins | None = None) -> Client:
        made = Client(self.edge.url, key, mesh="team", pins=pins or Pins(None), options=QUICK)
        self._open.append(made)
        return made

    async def member(self, name: str, role: str = "member") -> Client:
        """Return a client whose key is a member of the mesh team."""
        key = NodeKey.generate()
        await self.admin.meshes.add_member("team", key.node, name, role)  # type: ignore[arg-type]
        return self.client(key)

    async def start(self) -> None:
        self.admin = self.client(self.edge.admin.key)
        await self.admin.meshes.create("team", name="boss")

    async def close(self) -> None:
        for client in self._open:
            await client.close()


def successor_of(key: NodeKey) -> NodeKey:
    """Return a new key that keeps the old one for mail that was sealed for it."""
    return NodeKey(NodeKey.generate().reveal_seed(), [key, *key.former])


async def read_one(client: Client) -> Delivery:
    """Return the next message of a client and confirm it."""
    async with asyncio.timeout(PATIENCE_S), await client.receive() as mailbox:
        async for delivery in mailbox:
            await mailbox.confirm(delivery)
            return delivery
    raise AssertionError("no message came")


async def rotate(people: People, client: Client) -> Client:
    """Rotate the key of a client and return the client of the new key."""
    new = successor_of(client.key)
    await client.keys.rotate(new)
    return people.client(new)
