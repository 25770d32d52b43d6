"""The subscribers of fan-out, in a process of their own for each contestant.

    python -m bench.peers.subscribers posthouse|redis|jetstream|rabbitmq PORT COUNT

Each subscriber speaks just enough of its server's protocol to subscribe; then it counts messages in the received bytes.
Full clients would measure how fast Python parses a protocol, a hundred times. The lines on stdin and stdout are those
of bench.relay_fan_out.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import uvloop

from bench.peers.server_process import LOOPBACK
from bench.peers.works import MARK
from bench.raw_stream import RawStream
from bench.relay_fan_out import FanOutCounts, answer_counts, fan_out_process, subscribe
from bench.scales import SUBSCRIBERS

_CHANNEL = b"fan_out"


class SubscriberProcess:
    """The subscribers of one contestant; `port` is that of its server."""

    def __init__(self, contestant: str) -> None:
        self._contestant = contestant
        self.port = 0
        self._stack = AsyncExitStack()
        self._counts: FanOutCounts | None = None
        self._published = 0

    async def start(self) -> None:
        """Start the process and wait until every subscriber is subscribed; do nothing if they are."""
        if self._counts is None:
            arguments = (self._contestant, str(self.port), str(SUBSCRIBERS))
            self._counts = await self._stack.enter_async_context(fan_out_process("bench.peers.subscribers", *arguments))

    @asynccontextmanager
    async def expecting(self, messages: int) -> AsyncIterator[None]:
        """Publish this many messages in the block; it ends when every subscriber has received them."""
        assert self._counts is not None
        self._published += messages
        self._counts.expect(self._published)
        yield
        seen, wanted = await self._counts.delivered(), self._published * SUBSCRIBERS
        if seen != wanted:
            raise RuntimeError(f"{self._contestant}: {seen} deliveries instead of {wanted}")

    async def stop(self) -> None:
        """End the process."""
        await self._stack.aclose()


class Subscriber(RawStream):
    """One subscriber of a server other than posthouse."""

    def __init__(self) -> None:
        super().__init__(MARK.encode())

    async def ask(self, question: bytes, answer_end: bytes) -> None:
        """Send bytes and read up to the end of their answer."""
        assert self._transport is not None
        self._transport.write(question)
        await self._until(answer_end)

    def start_counting(self) -> None:
        """Count messages in everything that arrives from now on."""
        assert self._greeting is not None
        rest, self._greeting = bytes(self._greeting), None
        self.data_received(rest)


async def _connect(port: int) -> Subscriber:
    _, stream = await asyncio.get_running_loop().create_connection(Subscriber, LOOPBACK, port)
    return stream


async def _redis(port: int) -> RawStream:
    stream = await _connect(port)
    await stream.ask(b"SUBSCRIBE %b\r\n" % _CHANNEL, b":1\r\n")
    stream.start_counting()
    return stream


async def _jetstream(port: int) -> RawStream:
    stream = await _connect(port)
    await stream.ask(b'CONNECT {"verbose":false}\r\nSUB %b 1\r\nPING\r\n' % _CHANNEL, b"PONG\r\n")
    stream.start_counting()
    return stream


async def _rabbitmq(port: int) -> RawStream:
    from pamqp import commands, frame, header

    def marshalled(channel: int, *methods: commands.Frame) -> bytes:
        return b"".join(frame.marshal(method, channel) for method in methods)

    def method_id(method: type[commands.Frame]) -> bytes:
        return int(method.index).to_bytes(4, "big")

    stream = await _connect(port)
    greeting = frame.marshal(header.ProtocolHeader(), 0)
    await stream.ask(greeting, method_id(commands.Connection.Start))
    login = commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US")
    await stream.ask(marshalled(0, login), method_id(commands.Connection.Tune))
    opened = marshalled(0, commands.Connection.TuneOk(1, 131_072, 0), commands.Connection.Open("/"))
    await stream.ask(opened, method_id(commands.Connection.OpenOk))
    subscribing = marshalled(
        1,
        commands.Channel.Open(),
        commands.Queue.Declare(exclusive=True, auto_delete=True),
        commands.Queue.Bind(exchange=_CHANNEL.decode()),
        commands.Basic.Consume(no_ack=True),
    )
    await stream.ask(subscribing, method_id(commands.Basic.ConsumeOk))
    stream.start_counting()
    return stream


def _posthouse(port: int) -> Awaitable[RawStream]:
    return subscribe(LOOPBACK, port)


_SUBSCRIBE: dict[str, Callable[[int], Awaitable[RawStream]]] = {
    "posthouse": _posthouse,
    "redis": _redis,
    "jetstream": _jetstream,
    "rabbitmq": _rabbitmq,
}


async def serve(contestant: str, port: int, count: int) -> None:
    """Subscribe, and answer the lines on stdin."""
    await answer_counts([await _SUBSCRIBE[contestant](port) for _ in range(count)])


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
