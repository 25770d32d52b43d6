"""Two Pinch agents on one relay: one writes while the other is offline, and learns that it was read.

Run it with `python examples/pinch_agent/main.py`; it needs the extra `pinch`. The relay is a process of its own,
started as `posthouse relay up --pinch-host relay.example`; the agents know of it only the wire.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RELAY = "relay.example"


async def main(url: str) -> None:
    from examples.pinch_agent.agent import CONFIRM, MESSAGE, Agent

    async with Agent(RELAY) as alice, Agent(RELAY) as bob:
        await alice.connect(url)
        await alice.write(bob.address, "the horses are ready")
        await alice.write(bob.address, "the coach leaves at noon")
        say("alice wrote twice; bob was offline")
        await bob.connect(url)
        read = 0
        while read < 2:
            envelope = await bob.receive()
            if envelope.type == MESSAGE:
                say(f"bob reads: {bob.read(envelope)}")
                await bob.confirm(envelope)
                read += 1
        for _ in range(2):
            envelope = await alice.receive()
            assert envelope.type == CONFIRM and alice.is_confirmed_by_reader(envelope)
            say(f"alice learns that it was {envelope.delivery_confirm.state}, after it had waited at the relay")


@contextmanager
def running_relay(folder: Path) -> Iterator[str]:
    """Run a relay with Pinch on a free port of this machine; yield its URL."""
    command = [sys.executable, "-m", "posthouse.cli.main", "relay", "up", "--listen", "127.0.0.1:0", "--json"]
    log = folder.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--data-dir", str(folder), "--pinch-host", RELAY],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        started = process.stdout.readline()
        if not started:  # it says why: the extra may be missing
            failure = json.loads(log.read_text().splitlines()[-1])
            sys.exit(f"{failure['detail']}\n{failure['hint']}")
        yield json.loads(started)["url"]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the agent's modules are a package
    with tempfile.TemporaryDirectory() as scratch, running_relay(Path(scratch) / "relay") as address:
        asyncio.run(asyncio.wait_for(main(address), 30))
