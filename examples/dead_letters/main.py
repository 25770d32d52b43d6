"""Dead letters: failed messages are kept with the reason, can be inspected, and sent again once the cause is fixed.

Run it with `python examples/dead_letters/main.py`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from posthouse import Bus, Envelope


class Printer:
    """A handler that fails while it has no paper."""

    def __init__(self) -> None:
        self.has_paper = False
        self.printed = asyncio.Event()

    async def __call__(self, message: Envelope) -> None:
        if not self.has_paper:
            raise RuntimeError("out of paper")
        say(f"printed: {message.payload}")
        self.printed.set()


async def main(folder: Path) -> None:
    printer, died = Printer(), asyncio.Event()
    async with Bus(folder) as bus:
        await bus.on_dead_letter(lambda _letter: died.set())
        await bus.register_endpoint("office.printer")
        await bus.subscribe("office.printer", printer)
        await bus.publish("office.printer", "the report", from_="office.ann")
        await died.wait()
        for letter in await bus.dead_letters():
            say(f"dead: {letter.subject}: {letter.reason}")
            printer.has_paper = True
            await bus.requeue(letter.subject, letter.id)
        await printer.printed.wait()
        say(f"dead letters left: {len(await bus.dead_letters())}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "bus"))
