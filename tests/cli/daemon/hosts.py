"""Two hosts at one relay, all real processes: alice and bob, members of the mesh main."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from posthouse.client import Client, Pins
from posthouse.keys import NodeKey
from tests.faults.daemon_process import DaemonProcess
from tests.faults.relay_process import RelayProcess


@dataclass(frozen=True)
class Hosts:
    """What runs."""

    relay: RelayProcess
    alice: DaemonProcess
    bob: DaemonProcess


@contextmanager
def running_hosts(folder: Path) -> Iterator[Hosts]:
    """Everything up, and gone afterwards."""
    admin = NodeKey.generate()
    with (
        RelayProcess(folder / "r", "--admin", admin.node) as relay,
        DaemonProcess(folder / "a", relay.url) as alice,
        DaemonProcess(folder / "b", relay.url) as bob,
    ):
        asyncio.run(_introduce(relay, admin, {"alice": alice.node, "bob": bob.node}))
        yield Hosts(relay, alice, bob)


async def _introduce(relay: RelayProcess, admin: NodeKey, names: dict[str, str]) -> None:
    async with Client(relay.url, admin, pins=Pins(None)) as client:
        for name, node in names.items():
            await client.meshes.add_member("main", node, name, "member")
