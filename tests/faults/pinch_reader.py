"""A Pinch agent in a process of its own: writes down each message before it confirms it, until it is killed.

    python -m tests.faults.pinch_reader URL HOST KEY_HEX careful|hasty

Lines: `D connection text` for each message. A connection that ends is followed by the next one. `hasty` confirms first
and writes down a moment later; for the control only.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from nacl.signing import SigningKey

from examples.pinch_agent.agent import MESSAGE, Agent, LoginRefused

_PAUSE_S = 0.02
_LATE_S = 0.01  # between confirming and writing down, of hasty ones


async def main(url: str, agent: Agent, manner: str) -> None:
    """Read until the process ends."""
    connection = 0
    while True:
        try:
            await agent.connect(url)
            connection += 1
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
        if manner == "careful":
            await agent.confirm(envelope)


if __name__ == "__main__":
    reader = Agent(sys.argv[2], SigningKey(bytes.fromhex(sys.argv[3])))
    asyncio.run(main(sys.argv[1], reader, sys.argv[4]))
