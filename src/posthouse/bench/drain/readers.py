"""Readers in a process of their own, with the client that everybody uses; its verification is switched off.

    python -m posthouse.bench.drain.readers HOST PORT

Each line `READERS EACH WINDOW` on stdin connects as many new readers and is answered by their node ids. The next line
lets them open their mailboxes; once every message is confirmed and every confirmation answered, a line tells
seconds, messages, confirmations and whether each reader got its messages in order. The end of stdin ends it.
"""

from __future__ import annotations

import asyncio
import sys
import time

import uvloop

from posthouse.client import Client, ClientOptions, Pins
from posthouse.keys import NodeKey

_OPTIONS = ClientOptions(is_verifying=False)


class Reader:
    """One reader with a backlog."""

    def __init__(self, url: str) -> None:
        self.key = NodeKey.generate()
        self.client = Client(url, self.key, pins=Pins(None), options=_OPTIONS)
        self.seqs: list[int] = []

    async def drain(self, each: int, window: int) -> None:
        """Take and confirm everything; returns when the last confirmation is answered."""
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
        _say(" ".join(reader.key.node for reader in readers))
        await asyncio.to_thread(sys.stdin.readline)
        started = time.perf_counter()
        await asyncio.gather(*(reader.drain(each, window) for reader in readers))
        seconds = time.perf_counter() - started
        is_in_order = all(reader.is_in_order for reader in readers)
        _say(f"{seconds} {sum(len(reader.seqs) for reader in readers)} {int(is_in_order)}")
        await asyncio.gather(*(reader.client.close() for reader in readers))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(serve(f"http://{sys.argv[1]}:{sys.argv[2]}"))
