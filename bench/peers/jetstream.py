"""NATS JetStream: streams in files, a pull consumer, a key-value bucket for locks, plain subscribers for fan-out.

`sync_interval: always` syncs every message before its answer; the server has supported it since version 2.10. An older
server is refused, because its figures would be those of the page cache.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers.server_process import LOOPBACK, ServerProcess, can_connect, find_server, free_ports, server_version
from bench.peers.subscribers import SubscriberProcess
from bench.peers.works import BODY, READER_BATCH, Configuration, Contestant, Operation, Work
from bench.scales import IN_FLIGHT, QUEUE

_BODY = BODY.encode()
_LOG, _QUEUE, _FAN_OUT = "log", "queue", "fan_out"
_SYNCS_SINCE = (2, 10)
_TIMEOUT_S = 30


# The bare subscribers of fan-out do not answer pings.
_SETTINGS = {"ping_interval": "1h", "jetstream.sync_interval": "always", "streams": "storage file, one replica"}


def _configuration(port: int, folder: Path) -> str:
    return f"""listen: "{LOOPBACK}:{port}"
ping_interval: "{_SETTINGS["ping_interval"]}"
jetstream {{ store_dir: "{folder}", sync_interval: {_SETTINGS["jetstream.sync_interval"]} }}
"""


class JetStream(Contestant):
    """One server and one connection of nats-py."""

    name = "JetStream"
    client_modules = ("nats",)
    programs = ("nats-server",)

    def __init__(self) -> None:
        super().__init__()
        self._subscribers = SubscriberProcess("jetstream")

    def missing(self) -> list[str]:
        absent = super().missing()
        program = find_server("nats-server")
        if program is not None:
            version = server_version(program, "--version")
            if _numbers(version) < _SYNCS_SINCE:
                absent.append(f"a nats-server that can sync each message (2.10 or newer; found {version})")
        return absent

    async def start(self, folder: Path) -> Configuration:
        import nats

        program = find_server("nats-server")
        assert program is not None
        (port,) = free_ports(1)
        file = folder / "nats.conf"
        file.write_text(_configuration(port, folder))
        server = ServerProcess([program, "-c", file], folder)
        self._stack.callback(server.stop)
        await server.wait_ready(lambda: can_connect(port))
        connection = await nats.connect(f"nats://{LOOPBACK}:{port}", allow_reconnect=False)
        self._stack.push_async_callback(connection.close)
        self._stream: Any = connection.jetstream(timeout=_TIMEOUT_S)
        for name in (_LOG, _QUEUE, _FAN_OUT):
            await self._stream.add_stream(name=name, subjects=[name], storage="file")
        self._reader = await self._stream.pull_subscribe(_QUEUE, durable="reader")
        self._locks = await self._stream.create_key_value(bucket="locks", storage="file")
        self._subscribers.port = port
        self._stack.push_async_callback(self._subscribers.stop)
        durability = "sync_interval always: every message is synced before its answer"
        client = f"nats-py {importlib.metadata.version('nats-py')}"
        return Configuration(server_version(program, "--version"), durability, client, _SETTINGS)

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {
            Work.PUBLISH: [Operation(self.name, self._publish)],
            Work.PUBLISH_64: [Operation(self.name, self._publish_64)],
            Work.LOCK: [Operation(self.name, self._lock)],
            Work.DRAIN: [Operation(self.name, self._drain, self._fill)],
            Work.FAN_OUT: [Operation(self.name, self._fan_out, self._subscribers.start)],
        }

    async def _publish(self) -> None:
        await self._stream.publish(_LOG, _BODY)

    async def _publish_64(self) -> None:
        await self._publish_many(_LOG, IN_FLIGHT)

    async def _publish_many(self, subject: str, count: int) -> None:
        await asyncio.gather(*(self._stream.publish(subject, _BODY) for _ in range(count)))

    async def _lock(self) -> None:
        revision = await self._locks.create("lock", b"owner")
        await self._locks.delete("lock", last=revision)

    async def _fill(self) -> None:
        await self._publish_many(_QUEUE, QUEUE)

    async def _drain(self) -> None:
        read = 0
        while read < QUEUE:
            messages = await self._reader.fetch(READER_BATCH, timeout=_TIMEOUT_S)
            for message in messages[:-1]:
                await message.ack()
            await messages[-1].ack_sync()
            read += len(messages)

    async def _fan_out(self) -> None:
        async with self._subscribers.expecting(IN_FLIGHT):
            await self._publish_many(_FAN_OUT, IN_FLIGHT)


def _numbers(version: str) -> tuple[int, int]:
    found = re.search(r"(\d+)\.(\d+)", version)
    assert found is not None, version
    return int(found[1]), int(found[2])
