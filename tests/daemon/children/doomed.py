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
from posthouse.daemon.daemon import Daemon
from posthouse.daemon.settings import DaemonSettings


def die_after(work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the work with a SIGKILL right behind it."""

    async def doomed(*given: Any) -> Any:
        await work(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    return doomed


def doom(daemon: Daemon, point: str) -> None:
    if point == "outbox_committed":
        daemon.outbox.accept = die_after(daemon.outbox.accept)  # type: ignore[method-assign, assignment]
    elif point == "rows_claimed":
        daemon.outbox.claim = die_after(daemon.outbox.claim)  # type: ignore[method-assign]
    elif point == "relay_committed":
        daemon.drain._submit = die_after(daemon.uplink.submit)
    elif point == "inbox_inserted":
        daemon.inbox.put = die_after(daemon.inbox.put)  # type: ignore[method-assign]


async def main(point: str, directory: str, relay: str, pins: str) -> None:
    client = ClientOptions(reconnect_most_s=0.2)
    settings = DaemonSettings(
        directory=Path(directory), relay=relay, mesh="main", tcp="off", pins=Path(pins), client=client
    )
    daemon = Daemon(settings)
    await daemon.start()
    doom(daemon, point)
    await daemon.uplink.wait_sending()
    sys.stdout.write(f"{daemon.key.node}\n")
    sys.stdout.flush()
    await daemon.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
