"""A Pinch agent in a process of its own: writes down each message before it confirms it, until it is killed.

    python -m tests.faults.pinch_reader URL HOST KEY_HEX careful|hasty FILE

Lines: `D connection text` for each message. A connection that ends is followed by the next one. A careful reader stores
each message in FILE before it answers a ping behind it, and confirms what FILE holds when it connects. `hasty` confirms
what it reads and writes it down later; for the control only.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

import aiohttp
from nacl.signing import SigningKey

from examples.pinch_agent.agent import MESSAGE, Agent, LoginRefused
from examples.pinch_agent.pinch_pb2 import Envelope

_PAUSE_S = 0.02
_LATE_S = 0.01  # between two messages that a hasty one writes down


class StoringAgent(Agent):
    """An agent that stores each message in the tick in which it reads it."""

    def __init__(self, relay: str, key: SigningKey, path: Path) -> None:
        super().__init__(relay, key)
        self._path = path
        self.connection = 0

    def stored(self) -> list[Envelope]:
        """Return sender and id of the stored messages."""
        if not self._path.exists():
            return []
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return [Envelope(from_address=line[0], message_id=line[1].encode()) for line in lines if len(line) == 2]

    def take(self, envelope: Envelope) -> None:
        if envelope.type == MESSAGE:
            print(f"D {self.connection} {self.read(envelope)}", flush=True)  # noqa: T201 - the campaign reads it
            with self._path.open("a") as file:
                file.write(f"{envelope.from_address} {envelope.message_id.decode()}\n")
        super().take(envelope)


class HastyAgent(Agent):
    """An agent that confirms each message when it reads it and writes it down later, one after the other."""

    def __init__(self, relay: str, key: SigningKey) -> None:
        super().__init__(relay, key)
        self.connection = 0
        self._late_s = 0.0

    def stored(self) -> list[Envelope]:
        """Return nothing: what was confirmed need not be confirmed again."""
        return []

    def take(self, envelope: Envelope) -> None:
        if envelope.type == MESSAGE:
            self._late_s += _LATE_S
            line = f"D {self.connection} {self.read(envelope)}"
            asyncio.get_running_loop().call_later(self._late_s, partial(print, line, flush=True))
        super().take(envelope)


async def main(url: str, agent: StoringAgent | HastyAgent) -> None:
    """Read until the process ends."""
    while True:
        try:
            agent.connection += 1
            await agent.connect(url)
            for envelope in agent.stored():
                await agent.confirm(envelope)
            while True:
                envelope = await agent.receive()
                if envelope.type == MESSAGE:
                    await agent.confirm(envelope)
        except (ConnectionError, LoginRefused, aiohttp.ClientError, TypeError):  # TypeError: closed before the login
            await asyncio.sleep(_PAUSE_S)


if __name__ == "__main__":
    url, host, key_hex, manner, file = sys.argv[1:]
    key = SigningKey(bytes.fromhex(key_hex))
    asyncio.run(main(url, StoringAgent(host, key, Path(file)) if manner == "careful" else HastyAgent(host, key)))
