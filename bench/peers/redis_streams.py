"""Redis: streams with a consumer group, SET NX for locks, publish/subscribe beside the stream for fan-out.

`appendfsync always` syncs the append-only file once per loop of the server, before the answers of that loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers.server_process import LOOPBACK, ServerProcess, find_server, free_ports
from bench.peers.subscribers import SubscriberProcess
from bench.peers.works import BODY, READER_BATCH, Configuration, Contestant, Operation, Work
from bench.scales import IN_FLIGHT, QUEUE

_SETTINGS = {
    "bind": LOOPBACK,
    "appendonly": "yes",
    "appendfsync": "always",
    "save": "",
    "auto-aof-rewrite-percentage": "0",
}
_LOCK_S = 30
_FIELDS = {"body": BODY}
#: streams, and the channel of fan-out
_LOG, _QUEUE, _FAN_OUT = "log", "queue", "fan_out"
_GROUP = "readers"


class Redis(Contestant):
    """One server and one connection of redis-py."""

    name = "Redis"
    client_modules = ("redis", "hiredis")
    programs = ("redis-server",)

    def __init__(self) -> None:
        super().__init__()
        self._subscribers = SubscriberProcess("redis")

    async def start(self, folder: Path) -> Configuration:
        import redis
        import redis.asyncio

        program = find_server("redis-server")
        assert program is not None
        (port,) = free_ports(1)
        flags = [part for name, value in _SETTINGS.items() for part in (f"--{name}", value)]
        server = ServerProcess([program, "--port", str(port), "--dir", str(folder), *flags], folder)
        self._stack.callback(server.stop)
        self._client: Any = redis.asyncio.Redis(host=LOOPBACK, port=port, single_connection_client=True)
        self._stack.push_async_callback(self._client.aclose)
        await server.wait_ready(self._client.ping, redis.RedisError)
        await self._client.xgroup_create(_QUEUE, _GROUP, mkstream=True)
        self._subscribers.port = port
        self._stack.push_async_callback(self._subscribers.stop)
        durability = "appendfsync always: the append-only file is synced before the answer"
        client = f"redis-py {redis.__version__}, hiredis"
        version = (await self._client.info("server"))["redis_version"]
        return Configuration(f"Redis {version}", durability, client, _SETTINGS)

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {
            Work.PUBLISH: [Operation(self.name, self._publish)],
            Work.PUBLISH_64: [Operation(self.name, self._publish_64)],
            Work.LOCK: [Operation(self.name, self._lock)],
            Work.DRAIN: [Operation(self.name, self._drain, self._fill)],
            Work.FAN_OUT: [Operation(self.name, self._fan_out, self._subscribers.start)],
        }

    async def _publish(self) -> None:
        await self._client.xadd(_LOG, _FIELDS)

    async def _publish_64(self) -> None:
        await self._add(_LOG, IN_FLIGHT)

    async def _lock(self) -> None:
        lock = self._client.lock("lock", timeout=_LOCK_S, blocking=False)
        if not await lock.acquire():
            raise RuntimeError("Redis did not grant a free lock")
        await lock.release()

    async def _fill(self) -> None:
        await self._add(_QUEUE, QUEUE)

    async def _add(self, stream: str, count: int) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for _ in range(count):
            pipeline.xadd(stream, _FIELDS)
        await pipeline.execute()

    async def _drain(self) -> None:
        read = 0
        while read < QUEUE:
            ((_, entries),) = await self._client.xreadgroup(_GROUP, "reader", {_QUEUE: ">"}, count=READER_BATCH)
            await self._client.xack(_QUEUE, _GROUP, *(entry for entry, _ in entries))
            read += len(entries)

    async def _fan_out(self) -> None:
        async with self._subscribers.expecting(IN_FLIGHT):
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(IN_FLIGHT):
                pipeline.xadd(_FAN_OUT, _FIELDS)
                pipeline.publish(_FAN_OUT, BODY)
            await pipeline.execute()
