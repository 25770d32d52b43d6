"""Readers with a backlog, in a separate process, and the sender that fills their queues.

    python -m bench.drain_readers HOST PORT

runs the readers with the normal client, without verification. Each line `READERS EACH WINDOW` on stdin connects new
readers; the answer is their node ids. The next line starts the receiving; once every confirmation is answered, the
process prints seconds, messages and whether each reader got its messages in order. It exits at the end of stdin.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvloop

from bench.processes import RelayProcess, run_module
from bench.raw_stream import ACCEPTED, EventSource, Publisher, open_raw
from bench.scales import BODY_CHARS, IN_FLIGHT
from posthouse.client import Client, ClientOptions, Pins
from posthouse.client.trust.signing import sign_event
from posthouse.keys import NodeKey
from posthouse.model.event import MESSAGE, encode_event

_BODY = "x" * BODY_CHARS


class MessageSource(EventSource):
    """Signs messages with one key, and plain events of the same size and tags; no two are equal."""

    def __init__(self, body: str = _BODY) -> None:
        super().__init__()
        self._body = body
        self._number = 0

    def messages(self, nodes: Sequence[str], each: int, kind: int = MESSAGE) -> list[bytes]:
        """Return EVENT commands of direct messages, `each` for every node, alternating between nodes."""
        return [self._message(node, kind) for _ in range(each) for node in nodes]

    def _message(self, node: str, kind: int) -> bytes:
        self._at_ns += 1
        self._number += 1
        tags = (("p", node), ("c", f"{self._number:012d}"))
        return b'["EVENT",%b]' % encode_event(sign_event(self.key, kind, self._body, tags, self._at_ns))


class MessageSender(Publisher):
    """One sender of a relay."""

    source: MessageSource

    async def fill(self, nodes: Sequence[str], each: int) -> None:
        """Queue `each` messages for every node."""
        await self.rate(self.source.messages(nodes, each), IN_FLIGHT * 4)


async def open_sender(relay: RelayProcess, body: str = _BODY) -> MessageSender:
    """Open a sender with a new key."""
    source = MessageSource(body)
    return MessageSender(await open_raw(relay.host, relay.port, source.key, ACCEPTED), source)


_TIMEOUT_S = 300
_MAX_LINE = 1 << 20  # one line has the node ids of all readers


class ReaderProcess:
    """The process that runs the readers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def drain(self, sender: MessageSender, readers: int, each: int, window: int) -> float:
        """Queue messages for new readers and return how many per second they confirmed."""
        nodes = (await self._ask(f"{readers} {each} {window}")).split()
        await sender.fill(nodes, each)
        seconds, count, is_in_order = (await self._ask("go")).split()
        if int(count) != readers * each or is_in_order != "1":
            raise RuntimeError(f"{count} of {readers * each} messages arrived, in order: {is_in_order}")
        return readers * each / float(seconds)

    async def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        answer = await asyncio.wait_for(self._process.stdout.readline(), _TIMEOUT_S)
        if not answer:
            raise RuntimeError("the readers ended")
        return answer.decode().strip()


@asynccontextmanager
async def open_readers(relay: RelayProcess) -> AsyncIterator[ReaderProcess]:
    """Run the process of the readers until the block ends."""
    process = await run_module("bench.drain_readers", relay.host, str(relay.port), limit=_MAX_LINE)
    try:
        yield ReaderProcess(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


NOT_VERIFYING = ClientOptions(is_verifying=False)


class Reader:
    """One reader with a backlog."""

    def __init__(self, url: str, options: ClientOptions = NOT_VERIFYING) -> None:
        self.key = NodeKey.generate()
        self.client = Client(url, self.key, pins=Pins(None), options=options)
        self.seqs: list[int] = []

    async def drain(self, each: int, window: int) -> None:
        """Receive and confirm all messages; returns when the last confirmation is answered."""
        mailbox = await self.client.receive(window=window)
        while len(self.seqs) < each:
            taken = await mailbox.take()
            mailbox.confirm(*taken)
            self.seqs += [delivery.seq for delivery in taken]
        await mailbox.flush()

    @property
    def is_in_order(self) -> bool:
        return self.seqs == sorted(set(self.seqs))


async def serve(url: str) -> None:
    """Answer the lines on stdin."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, each, window = map(int, line.split())
        readers = [Reader(url) for _ in range(count)]
        await asyncio.gather(*(reader.client.connect() for reader in readers))
        _print(" ".join(reader.key.node for reader in readers))
        await asyncio.to_thread(sys.stdin.readline)
        started = time.perf_counter()
        await asyncio.gather(*(reader.drain(each, window) for reader in readers))
        seconds = time.perf_counter() - started
        is_in_order = all(reader.is_in_order for reader in readers)
        _print(f"{seconds} {sum(len(reader.seqs) for reader in readers)} {int(is_in_order)}")
        await asyncio.gather(*(reader.client.close() for reader in readers))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve(f"http://{sys.argv[1]}:{sys.argv[2]}"))
