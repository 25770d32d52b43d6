"""A Pinch agent in a process of its own: writes down each message before it confirms it, until it is killed.

    python -m tests.faults.pinch_reader URL HOST KEY_HEX careful|hasty FILE

Lines: `D connection text` for each message. A connection that ends is followed by the next one. A careful reader stores
each message in FILE before it answers a ping behind it, and confirms what FILE holds when it connects. `hasty` confirms
first and writes down a moment later; for the control only.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
from nacl.signing import SigningKey

from examples.pinch_agent.agent import MESSAGE, Agent, LoginRefused
from examples.pinch_agent.pinch_pb2 import Envelope

_PAUSE_S = 0.02
_LATE_S = 0.01  # between confirming and writing down, of hasty ones


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
            sys.stdout.write(f"D {self.connection} {self.read(envelope)}\n")
            sys.stdout.flush()
            with self._path.open("a") as file:
                file.write(f"{envelope.from_address} {envelope.message_id.decode()}\n")
        super().take(envelope)


async def main(url: str, agent: Agent, manner: str) -> None:
    """Read until the process ends."""
    connection = 0
    while True:
        try:
            connection += 1
            if isinstance(agent, StoringAgent):
                agent.connection = connection
            await agent.connect(url)
            if isinstance(agent, StoringAgent):
                for envelope in agent.stored():
                    await agent.confirm(envelope)
            await read(agent, connection, manner)
        except (ConnectionError, LoginRefused, aiohttp.ClientError, TypeError):  # TypeError: closed before the login
            await asyncio.sleep(_PAUSE_S)


async def read(agent: Agent, connection: int, manner: str) -> None:
    """Read until the connection ends."""
    while True:
        envelope = await agent.receive()
        if envelope.type != MESSAGE:
            continue
        if manner == "hasty":
            await agent.confirm(envelope)
            await asyncio.sleep(_LATE_S)
            sys.stdout.write(f"D {connection} {agent.read(envelope)}\n")
            sys.stdout.flush()
        else:
            await agent.confirm(envelope)


if __name__ == "__main__":
    key = SigningKey(bytes.fromhex(sys.argv[3]))
    is_careful = sys.argv[4] == "careful"
    reader = StoringAgent(sys.argv[2], key, Path(sys.argv[5])) if is_careful else Agent(sys.argv[2], key)
    asyncio.run(main(sys.argv[1], reader, sys.argv[4]))
