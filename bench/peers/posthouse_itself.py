"""posthouse: a relay with one client, and the bus in this process.

The client signs every event inside the timed part and the relay verifies it. Two works have a second way: 64 calls of
one loop iteration share a batch signature, and a reader may trust its relay instead of verifying each message again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.bus_throughput import Counted, publish_singly, publish_together
from bench.drain_readers import NOT_VERIFYING, MessageSender, Reader, open_sender
from bench.peers.subscribers import SubscriberProcess
from bench.peers.works import (
    BATCH_SIGNATURE,
    BODY,
    BUS_BURST,
    POSTHOUSE,
    READER_BATCH,
    TRUSTING_READER,
    Configuration,
    Contestant,
    Operation,
    Work,
)
from bench.processes import RelayProcess
from bench.scales import BUS_LIMITS, DRAIN_SETTINGS, IN_FLIGHT, KIND, QUEUE, SUBJECT
from posthouse.bus import Bus
from posthouse.client import Client, ClientOptions, Pins
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError
from posthouse.version import __version__

#: bare streams do not answer pings
_SETTINGS = DRAIN_SETTINGS | {"relay.ping_s": 3_600}
#: subscribers of fan-out receive KIND, so that events of the other works do not reach them
_LOG_KIND = KIND + 1


class PosthouseRelay(Contestant):
    """One relay and one connection of its client."""

    name = POSTHOUSE

    def __init__(self) -> None:
        super().__init__()
        self._reader: Reader | None = None
        self._subscribers = SubscriberProcess("posthouse")

    async def start(self, folder: Path) -> Configuration:
        relay = RelayProcess(folder / "relay", _SETTINGS)
        relay.start()
        self._stack.callback(relay.stop)
        self._url = relay.url
        self._client = await self._stack.enter_async_context(Client(relay.url, NodeKey.generate(), pins=Pins(None)))
        self._sender: MessageSender = await open_sender(relay, BODY)
        self._stack.callback(self._sender.close)
        self._subscribers.port = relay.port
        self._stack.push_async_callback(self._subscribers.stop)
        self._stack.push_async_callback(self._close_reader)
        settings = {name: str(value) for name, value in _SETTINGS.items()}
        durability = "the default: the write-ahead log is synced before the answer (SQLite, synchronous=FULL)"
        return Configuration(f"posthouse {__version__}", durability, "its own; every event is signed", settings)

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {
            Work.PUBLISH: [Operation(self.name, self._publish)],
            Work.PUBLISH_64: [
                Operation(self.name, self._publish_list),
                Operation(BATCH_SIGNATURE, partial(self._publish_calls, _LOG_KIND)),
            ],
            Work.LOCK: [Operation(self.name, self._lock)],
            Work.DRAIN: [
                Operation(self.name, self._drain, partial(self._fill, ClientOptions())),
                Operation(TRUSTING_READER, self._drain, partial(self._fill, NOT_VERIFYING)),
            ],
            Work.FAN_OUT: [Operation(self.name, self._fan_out, self._subscribers.start)],
        }

    async def _publish(self) -> None:
        await self._client.publish(BODY, kind=_LOG_KIND)

    async def _publish_list(self) -> None:
        events = [self._client.sign(BODY, kind=_LOG_KIND) for _ in range(IN_FLIGHT)]
        for answer in await self._client.publish_many(events):
            if isinstance(answer, PosthouseError):
                raise answer

    async def _publish_calls(self, kind: int) -> None:
        await asyncio.gather(*(self._client.publish(BODY, kind=kind) for _ in range(IN_FLIGHT)))

    async def _lock(self) -> None:
        async with self._client.lock("lock"):
            pass

    async def _fill(self, options: ClientOptions) -> None:
        """Queue messages for a new, connected reader."""
        await self._close_reader()
        self._reader = Reader(self._url, options)
        await self._reader.client.connect()
        await self._sender.fill([self._reader.key.node], QUEUE)

    async def _drain(self) -> None:
        assert self._reader is not None
        await self._reader.drain(QUEUE, READER_BATCH)

    async def _close_reader(self) -> None:
        if self._reader is not None:
            await self._reader.client.close()

    async def _fan_out(self) -> None:
        async with self._subscribers.expecting(IN_FLIGHT):
            await self._publish_calls(KIND)


class PosthouseBus(Contestant):
    """The bus with one endpoint and a handler; an operation ends when every message is handled."""

    name = "posthouse bus"

    def __init__(self) -> None:
        super().__init__()
        self._handled = Counted()

    async def start(self, folder: Path) -> Configuration:
        self._bus = await self._stack.enter_async_context(Bus(folder / "bus", reliability=BUS_LIMITS))
        await self._bus.register_endpoint(SUBJECT)
        await self._bus.subscribe(SUBJECT, self._handled)
        durability = "the default: a message survives the end of the process; it is not synced before the answer"
        return Configuration(f"posthouse {__version__}", durability, "in this process", {"limits": "raised"})

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {
            Work.BUS: [Operation(POSTHOUSE, partial(self._publish, publish_singly, BUS_BURST))],
            Work.BUS_64: [Operation(POSTHOUSE, partial(self._publish, publish_together, IN_FLIGHT))],
        }

    async def _publish(self, publish: Callable[[Bus, int], Awaitable[None]], count: int) -> None:
        self._handled.expect(count)
        await publish(self._bus, count)
        await self._handled.wait()
