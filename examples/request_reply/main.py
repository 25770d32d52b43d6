"""Request and reply: a handler replies to `reply_to`, and the requester waits for the reply.

Run it with `python examples/request_reply/main.py`. The second request goes to an endpoint that no process serves, and
times out.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from posthouse import Bus, Envelope, PosthouseError


async def serve_sums(bus: Bus) -> None:
    """Register an endpoint that adds numbers."""

    async def add(question: Envelope) -> None:
        if question.reply_to is not None:
            await bus.publish(question.reply_to, {"sum": sum(question.payload)}, from_=question.subject)

    await bus.register_endpoint("math.sum")
    await bus.subscribe("math.sum", add)


async def main(folder: Path) -> None:
    async with Bus(folder) as bus:
        await serve_sums(bus)
        answer = await bus.request("math.sum", [1, 2, 39], from_="agents.me", timeout_s=5)
        say(f"{answer.from_} answers {answer.payload}")

        await bus.register_endpoint("math.unserved")
        try:
            await bus.request("math.unserved", [1], from_="agents.me", timeout_s=0.2)
        except PosthouseError as failure:
            say(f"{failure.code}: {failure}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "bus"))
