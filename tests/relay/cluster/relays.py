"""Several relays on one database, inside the test's loop: the same key, ports of their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp

from posthouse.keys import NodeKey, keyfile
from posthouse.model.rate import Rate
from posthouse.relay.cluster.cluster import Cluster
from posthouse.relay.listen import ListenAddress
from posthouse.relay.server import NO_PROTECTION, RelayServer, ServerSettings
from tests.relay.edge import FAST, PATIENCE_S, Author, Edge


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def place_key(data_dir: Path, key: NodeKey) -> None:
    """Write the key that all relays of a store have."""
    keyfile.create(data_dir / "key.json", key)


def settings_of(data_dir: Path, store: str, admin: Author, event_rate: Rate = FAST) -> ServerSettings:
    """Return the settings of one relay of several."""
    port = free_port()
    return ServerSettings(
        listen=ListenAddress("127.0.0.1", port),
        data_dir=data_dir,
        store=store,
        advertise=f"http://127.0.0.1:{port}",
        protection=replace(NO_PROTECTION, has_admin=True),
        admins=(admin.node,),
        event_rate=event_rate,
        ephemeral_rate=FAST,
    )


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - no event says when
            await asyncio.sleep(0.01)


def cluster_of(edge: Edge) -> Cluster:
    """Return what a relay knows of the others."""
    cluster = edge.server.context.engine.cluster
    assert cluster is not None
    return cluster


@asynccontextmanager
async def relays(folder: Path, *stores: str, event_rate: Rate = FAST) -> AsyncIterator[list[Edge]]:
    """Run a relay on each of these URLs of one database; they are connected, and the first of them leads."""
    admin, key, count = Author(), NodeKey.generate(), len(stores)
    async with AsyncExitStack() as stack:
        edges: list[Edge] = []
        for number, store in enumerate(stores):
            place_key(folder / str(number), key)
            server = RelayServer(settings_of(folder / str(number), store, admin, event_rate))
            await server.start()
            stack.push_async_callback(server.stop)
            timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
            session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
            edges.append(Edge(server, session, admin))
        await eventually(lambda: all(len(cluster_of(each).links.open_links()) == count - 1 for each in edges))
        yield edges
