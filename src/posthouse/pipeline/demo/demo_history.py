"""Create a seeded history of a small group of agents by driving the product itself: relay, locks and bus.

The same seed produces the same sequence of actions; ids of stores, sealed bytes and message ids differ from run to
run. This package writes no record itself: every record comes from the code that writes it in production.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from posthouse.files import private_dir
from posthouse.model.clock import FakeClock
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.pipeline.demo.bus_scene import play_bus
from posthouse.pipeline.demo.cast import make_cast
from posthouse.pipeline.demo.relay_scene import play_relay
from posthouse.relay.store.sqlite.store import FILE_NAME

START_NS = 20_514 * DAY_S * SECOND_NS  # Monday 2 March 2026, midnight UTC
DAYS = 7
MIN_AGENTS = 4  # with fewer there is hardly any lock contention
_RELAY_SHARE = 0.6  # of all messages; the rest goes over the bus


@dataclass(frozen=True)
class DemoHistory:
    """The paths of the stores of a demo history."""

    directory: Path
    relay_dir: Path
    bus_dir: Path
    relay_db: Path
    bus_db: Path

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources for a pipeline run."""
        return str(self.relay_db), str(self.bus_db)


def make_history(directory: Path, seed: int = 1, agents: int = 12, messages: int = 3_000) -> DemoHistory:
    """Create a history of about `messages` messages in an empty directory."""
    return asyncio.run(make_history_async(directory, seed, agents, messages))


async def make_history_async(directory: Path, seed: int = 1, agents: int = 12, messages: int = 3_000) -> DemoHistory:
    """Do the same as make_history inside a running event loop."""
    private_dir(directory)
    cast = make_cast(seed, max(MIN_AGENTS, agents))
    on_relay = round(messages * _RELAY_SHARE)
    history = DemoHistory(
        directory,
        directory / "relay",
        directory / "bus",
        directory / "relay" / FILE_NAME,
        directory / "bus" / "bus.db",
    )
    await play_relay(history.relay_dir, FakeClock(wall_ns=START_NS), cast, seed, on_relay, DAYS)
    await play_bus(history.bus_dir, FakeClock(wall_ns=START_NS), cast, seed, messages - on_relay, DAYS)
    return history
