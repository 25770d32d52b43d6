"""A relay to test against: the real server on a real socket in the test's own loop, which can stop and restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from posthouse.client import Client, ClientOptions, Pins
from posthouse.keys import NodeKey
from posthouse.relay.listen import ListenAddress
from posthouse.relay.server import RelayServer, ServerSettings

QUICK = ClientOptions(reconnect_most_s=0.2, publish_timeout_s=20.0, connect_timeout_s=10.0)
ADMIN = NodeKey(b"a" * 32)


class House:
    """A relay and its clients."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings = ServerSettings(
            listen=ListenAddress("127.0.0.1", 0), data_dir=folder / "relay", admins=(ADMIN.node,), **settings
        )
        self.server: RelayServer | None = None
        self.clients: list[Client] = []

    @property
    def url(self) -> str:
        return f"http://{self.settings.listen}"

    async def up(self) -> None:
        """Start the relay; after the first time on the same port."""
        self.server = RelayServer(self.settings)
        await self.server.start()
        self.settings = replace(self.settings, listen=self.server.address)

    async def down(self) -> None:
        """Stop the relay."""
        if self.server is not None:
            await self.server.stop()
            self.server = None

    def client(self, key: NodeKey | None = None, *, options: ClientOptions = QUICK, **given: Any) -> Client:
        """Make a client with its own key and pins."""
        made = Client(self.url, key or NodeKey.generate(), pins=given.pop("pins", Pins(None)), options=options, **given)
        self.clients.append(made)
        return made

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        await self.down()


@asynccontextmanager
async def open_house(folder: Path, **settings: Any) -> AsyncIterator[House]:
    """Run a relay; it and its clients are closed at the end."""
    house = House(folder, **settings)
    await house.up()
    try:
        yield house
    finally:
        await house.close()
