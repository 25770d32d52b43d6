"""Messages between two agents that are never online at the same time, and a topic for both.

Run it with `python examples/messages/main.py`. Alice writes to Bob while he is away; the relay keeps the message
until Bob has confirmed it, and keeps the confirmation until Alice has read it. Direct messages are sealed: the relay,
a process of its own, cannot read them.
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
from posthouse.client import Pins

ALICE, BOB = NodeKey.generate(), NodeKey.generate()
PINS = Pins(None)


async def write(relay: str) -> str:
    """Alice sends while Bob is offline; sending the same request again creates no second message."""
    async with Client(relay, ALICE, pins=PINS) as client:
        await client.meshes.create_topic("main", "builds")
        sent = await client.send(BOB.node, "can you look at the build?", client_message_id="question-1")
        again = await client.send(BOB.node, "can you look at the build?", client_message_id="question-1")
        say(f"alice sent it once: {again.duplicate and again.id == sent.id}")
        return sent.id


async def read_and_answer(relay: str) -> None:
    """Bob reads the waiting messages in order, confirms each once it is stored, and replies."""
    async with Client(relay, BOB, pins=PINS) as client, await client.receive() as mailbox:
        async for delivery in mailbox:
            say(f"bob reads: {delivery.body} (waited: {delivery.was_stored})")
            mailbox.confirm(delivery)
            await client.send(delivery.sender, "it is green again", reply_to=delivery.id)
            await client.send("#builds", "fixed", meta={"build": 7})
            return


async def read_answers(relay: str, question: str) -> None:
    """Alice learns that Bob has confirmed, and reads his reply."""
    async with Client(relay, ALICE, pins=PINS) as client, await client.receive() as mailbox:
        async for confirmed in mailbox.confirmed():
            say(f"bob has confirmed the question: {confirmed.id == question}")
            break
        async for delivery in mailbox:
            say(f"alice reads: {delivery.body} (answers the question: {delivery.message.reply_to == question})")
            await mailbox.confirm(delivery)
            break
        states = await client.message(question)
        say(f"the question is {states.deliveries[0].state}")


async def main(relay: str) -> None:
    async with asyncio.timeout(30):
        question = await write(relay)
        await read_and_answer(relay)
        await read_answers(relay, question)


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
        asyncio.run(main(address))
