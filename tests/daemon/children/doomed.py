"""A daemon that kills itself at one point: `python -m tests.daemon.children.doomed POINT DIRECTORY RELAY PINS`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from posthouse.client import ClientOptions
from posthouse.client.key_chains import Keys
from posthouse.daemon.daemon import Daemon
from posthouse.daemon.settings import DaemonSettings, MeshSettings
from posthouse.keys import keyfile


def die_after(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the work with a SIGKILL right behind it."""

    async def doomed(*given: Any) -> Any:
        await work(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    return doomed


def die_now(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return blocking work with a SIGKILL right behind it."""

    def doomed(*given: Any) -> Any:
        work(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    return doomed


def doom(daemon: Daemon, point: str) -> None:
    """Let the daemon die right after one of its steps."""
    mesh = next(iter(daemon.meshes))
    steps: dict[str, tuple[Any, str]] = {
        "successor_stored": (keyfile, "prepare_next"),
        "relay_rotated": (Keys, "rotate"),
        "key_replaced": (keyfile, "promote_next"),
        "outbox_committed": (mesh.outbox, "accept"),
        "rows_claimed": (mesh.outbox, "claim"),
        "relay_committed": (mesh.drain, "_submit"),
        "inbox_inserted": (mesh.inbox, "put"),
    }
    owner, name = steps[point]
    setattr(owner, name, (die_now if owner is keyfile else die_after)(getattr(owner, name)))


async def main(point: str, directory: str, relay: str, pins: str) -> None:
    client = ClientOptions(reconnect_most_s=0.2)
    settings = DaemonSettings(
        Path(directory), (MeshSettings("main", relay, pins=Path(pins), client=client),), tcp="off"
    )
    daemon = Daemon(settings)
    await daemon.start()
    doom(daemon, point)
    mesh = next(iter(daemon.meshes))
    await mesh.uplink.wait_sending()
    sys.stdout.write(f"{mesh.key.node}\n")
    sys.stdout.flush()
    await daemon.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
