"""etcd: one key per message, and, as a lock, a key that is created only if it does not exist.

The client is aiohttp on the JSON gateway that every etcd serves. 64 at once are one transaction of 64 puts, which etcd
writes and syncs as one entry of its log: the fastest way it has, and the one that counts. Its puts succeed or fail
together. 64 separate puts have an answer each, as the publishes of the other systems do; HTTP needs a connection for
each of them that is in flight.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.peers.server_process import LOOPBACK, ServerProcess, find_server, free_ports, server_version
from bench.peers.works import BODY, ETCD_PUTS, Configuration, Contestant, Operation, Work
from bench.scales import IN_FLIGHT

_LEASE_S = 3_600


def _text(data: str) -> str:
    """Return bytes as the JSON gateway writes them."""
    return base64.b64encode(data.encode()).decode()


_BODY, _LOCK, _OWNER = _text(BODY), _text("lock"), _text("owner")


class Etcd(Contestant):
    """One member and one HTTP connection, and a connection for each of 64 separate puts."""

    name = "etcd"
    programs = ("etcd",)

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    async def start(self, folder: Path) -> Configuration:
        program = find_server("etcd")
        assert program is not None
        clients, peers = (f"http://{LOOPBACK}:{port}" for port in free_ports(2))
        settings = {
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"bench={peers}",
            "logger": "zap",
        }
        flags = [f"--{name}={value}" for name, value in settings.items()]
        server = ServerProcess([program, "--name=bench", f"--data-dir={folder / 'data'}", *flags], folder)
        self._stack.callback(server.stop)
        self._session = await self._open_session(clients, 1)
        self._wide_session = await self._open_session(clients, IN_FLIGHT)
        await server.wait_ready(lambda: self._call("kv/range", {"key": _LOCK}), aiohttp.ClientError)
        self._lease = (await self._call("lease/grant", {"TTL": _LEASE_S}))["ID"]
        durability = "the default: the Raft log is synced before the answer"
        client = f"aiohttp {aiohttp.__version__} on the JSON gateway"
        return Configuration(server_version(program, "--version"), durability, client, settings)

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {
            Work.PUBLISH: [Operation(self.name, self._publish)],
            Work.PUBLISH_64: [Operation(self.name, self._publish_64), Operation(ETCD_PUTS, self._put_64)],
            Work.LOCK: [Operation(self.name, self._lock)],
        }

    async def _publish(self) -> None:
        await self._call("kv/put", self._message())

    async def _publish_64(self) -> None:
        puts = [{"request_put": self._message()} for _ in range(IN_FLIGHT)]
        await self._call("kv/txn", {"success": puts})

    async def _put_64(self) -> None:
        puts = [self._call("kv/put", self._message(), self._wide_session) for _ in range(IN_FLIGHT)]
        await asyncio.gather(*puts)

    async def _lock(self) -> None:
        is_free = {"key": _LOCK, "target": "CREATE", "create_revision": "0"}
        put = {"request_put": {"key": _LOCK, "value": _OWNER, "lease": self._lease}}
        if not (await self._call("kv/txn", {"compare": [is_free], "success": [put]})).get("succeeded"):
            raise RuntimeError("etcd did not grant a free lock")
        await self._call("kv/deleterange", {"key": _LOCK})

    def _message(self) -> dict[str, str]:
        return {"key": _text(f"log/{next(self._numbers):012d}"), "value": _BODY}

    async def _open_session(self, url: str, connections: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=connections)
        return await self._stack.enter_async_context(aiohttp.ClientSession(url, connector=connector))

    async def _call(
        self, method: str, request: Mapping[str, Any], session: aiohttp.ClientSession | None = None
    ) -> dict[str, Any]:
        async with (session or self._session).post(f"/v3/{method}", data=msgspec.json.encode(request)) as answer:
            answer.raise_for_status()
            found: dict[str, Any] = msgspec.json.decode(await answer.read())
            return found
