"""Keep idle connections to a real relay and count the lost ones: `python -m scripts.soak [CONNECTIONS] [SECONDS]`.

Half of the clients read their mailbox, as a daemon does; the others only keep the stream open. All settings have their
defaults, so pings are as frequent as in production. Exits with 1 if a connection was lost.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import uvloop

from bench.processes import running_relay
from posthouse.client import Client
from posthouse.client.trust.pins import Pins
from posthouse.keys import NodeKey

CONNECTIONS = 50
SECONDS = 600.0


async def soak(url: str, pins: Pins, count: int, seconds: float) -> list[str]:
    """Return a line for each connection that was lost."""
    loop = asyncio.get_running_loop()
    lost: list[str] = []

    def note(number: int, code: int | None, reason: str) -> None:
        lost.append(f"client {number} lost its connection after {loop.time() - begun_s:.1f} s: {code} {reason}")

    async with AsyncExitStack() as stack:
        begun_s = loop.time()
        for number in range(count):
            client = await stack.enter_async_context(Client(url, NodeKey.generate(), pins=pins))
            client.observe(lambda: None, partial(note, number))
            await client.connect()
            if number % 2:
                await stack.enter_async_context(await client.receive())
        await asyncio.sleep(seconds)
        return list(lost)  # before the clients close their connections themselves


def main() -> int:
    """Run the soak and report."""
    arguments = [float(each) for each in sys.argv[1:]]
    count = int(arguments[0]) if arguments else CONNECTIONS
    seconds = arguments[1] if len(arguments) > 1 else SECONDS
    with tempfile.TemporaryDirectory() as home, running_relay(Path(home) / "relay", {}) as relay:
        lost = uvloop.run(soak(relay.url, Pins(Path(home) / "pins.json"), count, seconds))
    lines = [*lost, f"{count} idle connections for {seconds:.0f} s: {len(lost)} lost"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
