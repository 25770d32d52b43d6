"""The ten-line start: one endpoint, one handler, one message. Run it with `python examples/start/main.py`."""

import asyncio
import sys
import tempfile
from pathlib import Path

from posthouse import Bus, Envelope


async def main(folder: Path) -> None:
    handled = asyncio.Event()

    async def greet(message: Envelope) -> None:
        sys.stdout.write(f"{message.from_} says {message.payload!r}\n")
        handled.set()

    async with Bus(folder) as bus:
        await bus.register_endpoint("agents.greeter")
        await bus.subscribe("agents.greeter", greet)
        await bus.publish("agents.greeter", "hello", from_="agents.me")
        await handled.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "bus"))
