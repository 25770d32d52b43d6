"""A relay as a process of its own, for what Spark's processes send to it, and a reader of what arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posthouse.client import Client
from posthouse.client.trust.pins import Pins
from posthouse.keys import NodeKey, keyfile
from posthouse.pipeline.connector.sink_rows import SinkOptions
from tests.faults.relay_process import RelayProcess

QUIET_S = 0.5  # how long nothing more comes before a mailbox counts as read; what was accepted comes at once


class Post:
    """A relay, the key of the pipeline in a file, and a reader that subscribes to every topic."""

    def __init__(self, relay: RelayProcess, folder: Path) -> None:
        self.relay = relay
        self.folder = folder
        self.home = folder / "home"
        self.key = keyfile.create(self.home / "sender.json")
        self.reader = NodeKey.generate()

    def options(self, run_id: str = "run") -> SinkOptions:
        """Return the options of a sink that sends as the pipeline."""
        return SinkOptions(self.relay.url, run_id, home=str(self.home), key_file=str(self.home / "sender.json"))

    def client(self, key: NodeKey) -> Client:
        return Client(self.relay.url, key, pins=Pins(self.folder / "pins.json"))

    async def open_topic(self, *topics: str) -> None:
        """Make topics that the reader gets everything of."""
        async with self.client(self.reader) as client:
            for topic in topics:
                await client.meshes.create_topic("main", topic)
            await client.meshes.subscribe("main", ">")

    async def read(self, count: int) -> list[str]:
        """Return the bodies that wait for the reader: so many, and whatever comes beyond them."""
        bodies: list[str] = []
        async with self.client(self.reader) as client, await client.receive() as mailbox:
            messages = aiter(mailbox)
            while True:
                try:
                    delivery = await asyncio.wait_for(anext(messages), QUIET_S if len(bodies) >= count else 30)
                except TimeoutError:
                    return bodies
                bodies.append(str(delivery.body))
                mailbox.confirm(delivery)


@contextmanager
def post_office(folder: Path, *flags: str) -> Iterator[Post]:
    """Run a relay; its administrator is the pipeline's key."""
    home = folder / "post"
    home.mkdir(mode=0o700)
    relay = RelayProcess(folder, *flags)
    post = Post(relay, home)
    post.relay = RelayProcess(folder, "--admin", post.key.node, *flags)
    with post.relay:
        yield post
