"""Two hosts and a relay: one creates a mesh and an invite, the other joins with it; then they exchange sealed events.

Run it with `python examples/two_hosts/main.py`. Each host has a key and a memory of its own, as on two machines;
the relay is a process of its own and sees only sealed content.
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

from posthouse import Client, NodeKey
from posthouse.client import Pins, parse_invite

ALICE, BOB = NodeKey.generate(), NodeKey.generate()


async def invite(relay: str, home: Path) -> str:
    """The first host: create a mesh, and one string that lets one other node join."""
    async with Client(relay, ALICE, pins=Pins(home / "pins.json")) as client:
        await client.meshes.create("team", name="alice")
        return str(await client.meshes.invite("team"))


async def join_and_write(text: str, home: Path) -> None:
    """The second host: it needs only the invite, which names the relay's address and key."""
    given = parse_invite(text)
    pins = Pins(home / "pins.json")
    async with Client(given.url, BOB, mesh="team", relay_node=given.relay, pins=pins) as client:
        await client.join(given, "bob")
        say("bob has joined")
        await client.publish("the horses are ready", kind=1, seal_for=["alice"])


async def read(relay: str, home: Path) -> None:
    """The first host again: the relay has kept the events, which are verified and opened here."""
    async with Client(relay, ALICE, mesh="team", pins=Pins(home / "pins.json")) as client:
        async for received in await client.subscribe({"kinds": [1], "mesh": "team"}):
            say(f"alice reads: {client.open(received.event)}")
            return


async def main(relay: str, folder: Path) -> None:
    text = await invite(relay, folder / "first")
    await join_and_write(text, folder / "second")
    await asyncio.wait_for(read(relay, folder / "first"), 30)


@contextmanager
def running_relay(folder: Path) -> Iterator[str]:
    """Run a relay on a free port of this machine; yield its address."""
    command = [sys.executable, "-m", "posthouse.cli.main", "relay", "up", "--listen", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(
        [*command, "--data-dir", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch, running_relay(Path(scratch) / "relay") as address:
        asyncio.run(main(address, Path(scratch)))
