"""Two daemons on a relay that write to each other; some rows are replaced by an operator, some messages are seen.

Writers behind fences use the same relay.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posthouse.client import Published
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from tests.client.house import open_house
from tests.daemon.hosts import Host, host_at
from tests.pipeline.audit.activity import write_fenced


async def write_letters(root: Path) -> list[Path]:
    """Return the stores of all three after they have ended."""
    async with open_house(root) as house:
        async with host_at(house, "alice") as alice, host_at(house, "bob") as bob:
            for number in range(8):
                sent = await alice.send(bob.node, f"letter {number}", client_message_id=f"letter-{number}")
                assert sent.status == 202, sent
            await bob.until_bodies(8)
            for number in range(2):
                await _replace(alice, bob, f"refused-{number}")
            await bob.until_bodies(10)
            items = (await bob.get("/v1/inbox"))["items"]
            await bob.post("/v1/inbox/seen", ids=[item["id"] for item in items[:4]])
            hosts = (alice, bob)
        await write_fenced(house)
        folders = [host.settings.directory / "main" for host in hosts]
        stores = [folder / name for folder in folders for name in ("outbox.db", "inbox.db")]
        relay = house.settings.data_dir / "relay.db"
    return [relay, *stores]


async def _replace(sender: Host, reader: Host, client_id: str) -> None:
    submit = sender.mesh.drain._submit

    async def refuse(events: Sequence[Event]) -> list[Published | PosthouseError]:
        return [error("message_malformed", reason="x")] * len(events)

    sender.mesh.drain._submit = refuse
    await sender.send(reader.node, client_id, client_message_id=client_id)
    row = await sender.until_status(client_id, "dead")
    sender.mesh.drain._submit = submit
    answer = await sender.post("/v1/outbox/requeue", id=row["id"])
    await sender.until_status(answer["new_client_message_id"], "done")
