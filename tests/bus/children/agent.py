"""A process with one open bus that does what its standard input says; the other end is tests/bus/agent.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from posthouse import Bus
from posthouse.bus.settling import EndMessage
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.reliability import Reliability

Handler = Callable[[Envelope], Awaitable[None]]


def say(**said: Any) -> None:
    """Write one line to the test; whole lines only, because threads say things too."""
    os.write(1, json.dumps(said).encode() + b"\n")


def plain(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value, enc_hook=str))


class Agent:
    """The commands, one method each."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.unsubscribe: dict[str, Callable[[], Any]] = {}
        self.release = asyncio.Event()
        #: what the handler of each pattern does; `behave` changes it while it serves
        self.behaviours: dict[str, str] = {}

    async def register(self, subject: str, owner: str | None = None) -> None:
        await self.bus.register_endpoint(subject, owner=owner)

    async def unregister(self, subject: str, force: bool = False) -> None:
        await self.bus.unregister_endpoint(subject, force=force)

    async def subscribe(self, pattern: str, behaviour: str = "record", to: str = "", **options: Any) -> None:
        self.behaviours[pattern] = behaviour
        self.unsubscribe[pattern] = await self.bus.subscribe(pattern, self._handler(pattern, to), **options)

    async def fork(self) -> int:
        """Fork a child that does nothing for a minute; return its process id."""
        child = os.fork()
        if child == 0:
            os.closerange(0, 3)
            signal.alarm(60)
            signal.pause()
        return child

    async def behave(self, pattern: str, behaviour: str) -> None:
        self.behaviours[pattern] = behaviour

    async def drop(self, pattern: str) -> None:
        await self.unsubscribe.pop(pattern)()

    async def tap(self, pattern: str) -> None:
        async def handler(envelope: Envelope) -> None:
            say(event="tapped", id=envelope.id, subject=envelope.subject, payload=envelope.payload)

        await self.bus.tap(pattern, handler)

    async def publish(self, subject: str, payload: Any, from_: str, **options: Any) -> Any:
        return plain(await self.bus.publish(subject, payload, from_=from_, **options))

    async def burst(self, subject: str, count: int, from_: str, first: int = 0, in_flight: int = 64) -> list[Any]:
        """Publish numbered payloads, `in_flight` at a time; return the results in order of their numbers."""
        gate = asyncio.Semaphore(in_flight)

        async def one(number: int) -> Any:
            async with gate:
                return plain(await self.bus.publish(subject, {"n": number, "by": from_}, from_=from_))

        return await asyncio.gather(*(one(number) for number in range(first, first + count)))

    async def sequence(self, subject: str, count: int, from_: str) -> list[Any]:
        """Publish numbered payloads one by one."""
        return [await self.publish(subject, {"n": n, "by": from_}, from_) for n in range(count)]

    async def read_inbox(self, subject: str, limit: int = 100) -> Any:
        return plain(await self.bus.read_inbox(subject, limit))

    async def ack(self, subject: str, id: str) -> Any:  # noqa: A002 - the API's word
        return plain(await self.bus.ack(subject, id))

    async def breakers(self) -> Any:
        return plain(await self.bus.breakers())

    async def request(self, subject: str, payload: Any, from_: str, timeout_s: float) -> Any:
        return plain(await self.bus.request(subject, payload, from_=from_, timeout_s=timeout_s))

    async def let_go(self) -> None:
        """Release the handlers that hold."""
        self.release.set()

    async def die_at_end(self) -> None:
        """Be killed when the end of the next message is committed, before its file is removed."""
        EndMessage.on_committed = lambda self: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]

    def _handler(self, pattern: str, to: str) -> Handler:
        async def handle(envelope: Envelope) -> None:
            behaviour = self.behaviours[pattern]
            say(event="handled", id=envelope.id, subject=envelope.subject, payload=envelope.payload)
            if behaviour == "fail":
                raise RuntimeError("this handler always fails")
            if behaviour == "die" or envelope.payload == "deadly":
                os.kill(os.getpid(), signal.SIGKILL)
            if behaviour == "hold":
                await self.release.wait()
            if behaviour == "reply" and envelope.reply_to is not None:
                answer = {"answer_to": envelope.payload}
                result = await self.bus.publish(envelope.reply_to, answer, from_=envelope.subject)
                say(event="replied", **plain(result))
            if behaviour == "answer":
                result = await self.bus.publish(to, envelope.payload, from_=envelope.subject)
                say(event="answered", **plain(result))

        return handle


async def obey(agent: Agent, command: dict[str, Any]) -> None:
    number, do = command.pop("ask"), command.pop("do")
    try:
        answer = await getattr(agent, do)(**command)
    except PosthouseError as failure:
        say(ask=number, error=failure.code, text=str(failure))
    except Exception as failure:  # noqa: BLE001 - the test decides what it means
        say(ask=number, error=type(failure).__name__, text=str(failure))
    else:
        say(ask=number, answer=answer)


async def main(root: str, settings: dict[str, Any]) -> None:
    if "reliability" in settings:
        settings["reliability"] = msgspec.convert(settings["reliability"], Reliability)
    reader = asyncio.StreamReader(limit=1 << 24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Bus(Path(root), **settings) as bus:
        agent = Agent(bus)
        say(event="open", pid=os.getpid())
        async with asyncio.TaskGroup() as tasks:
            while line := await reader.readline():
                tasks.create_task(obey(agent, json.loads(line)))
            agent.release.set()
    say(event="closed")


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
