"""A relay process with clients around it, on a clock that a test can step; its store is checked when it has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from posthouse.client import Client, ClientOptions, Delivery, Mailbox, Pins
from posthouse.keys import NodeKey
from posthouse.model.clock import TEST_CLOCK_ENV, system_clock
from posthouse.relay.ops.maintenance import check_relay
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.faults.relay_process import RelayProcess
from tests.relay.both_stores import server_findings, store_of

PATIENCE_S = 60
SECOND_NS = 1_000_000_000
OPTIONS = ClientOptions(reconnect_most_s=0.2, connect_timeout_s=30)


class Town:
    """One relay and those who use it."""

    def __init__(self, folder: Path, stack: AsyncExitStack, *flags: str) -> None:
        self._offsets = folder / "clock.json"
        self._stack = stack
        self.step_clock()
        self.relay = RelayProcess(folder, *flags)
        self.relay.environ = {TEST_CLOCK_ENV: str(self._offsets)}

    def step_clock(self, wall_s: float = 0, boot_s: float = 0) -> None:
        """Set all clocks so many seconds off the real ones."""
        offsets = {"wall_offset_ns": round(wall_s * SECOND_NS), "boot_offset_ns": round(boot_s * SECOND_NS)}
        written = self._offsets.with_suffix(".new")
        written.write_text(json.dumps(offsets))
        written.replace(self._offsets)

    async def client(self, key: NodeKey | None = None) -> Client:
        """Make a client that is closed with the town."""
        clock = system_clock({TEST_CLOCK_ENV: str(self._offsets)})
        made = Client(self.relay.url, key or NodeKey.generate(), pins=Pins(None), options=OPTIONS, clock=clock)
        return await self._stack.enter_async_context(made)


@asynccontextmanager
async def town(folder: Path, *flags: str) -> AsyncIterator[Town]:
    """Run a relay until the block ends; then nothing may be wrong with its store."""
    async with AsyncExitStack() as stack, asyncio.timeout(4 * PATIENCE_S):
        url = store_of(folder)
        made = Town(folder, stack, *flags, *(() if url is None else ("--store", url)))
        stack.callback(made.relay.kill)
        await asyncio.to_thread(made.relay.start)
        yield made
    assert (check_relay(made.relay.data_dir / FILE_NAME) if url is None else server_findings(url)) == []


async def some(mailbox: Mailbox, count: int) -> list[Delivery]:
    """Return the next messages, confirmed."""
    taken: list[Delivery] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(taken) < count:
            fresh = await mailbox.take(count - len(taken))
            mailbox.confirm(*fresh)
            taken += fresh
        await mailbox.flush()
    return taken
