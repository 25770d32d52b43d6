"""What an idle relay, an idle daemon and an idle connection hold in memory.

The figure is the resident memory that `top` shows, shared libraries included; the report has the proportional set
size too, which divides shared pages among the processes that map them. Relay and daemon have just started and serve
one mesh. The connections are authenticated WebSockets, each with a key of its own, that read their mailboxes; what the
first ones load into memory is not counted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from bench.comparison import Requirement, describe_machine
from bench.processes import RelayProcess, running_daemon, running_relay
from posthouse.client import Client
from posthouse.client.trust.pins import Pins
from posthouse.keys import NodeKey

CONNECTIONS, QUICK_CONNECTIONS = 500, 30
_FIRST = 10  # connections that are not counted
_SETTLE_S = 2.0
REQUIRED = (
    Requirement("idle relay, MB", "relay", "rss_mb", "at most", 60),
    Requirement("idle daemon, MB", "daemon", "rss_mb", "at most", 45),
    Requirement("KB per idle connection", "connection", "kb", "at most", 24),
)


def measure_memory(scratch: Path, connections: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Measure a relay, a daemon, and connections."""
    settings = {"relay.connections_per_address": _FIRST + connections, "relay.connections_max": 4_096}
    with running_relay(scratch / "relay", settings) as relay:
        with running_daemon(scratch / "daemon", relay.url) as daemon:
            note("waiting until relay and daemon are idle")
            asyncio.run(asyncio.sleep(_SETTLE_S))
            idle = {"relay": resident(relay.pid), "daemon": resident(int(daemon.ready["pid"]))}
        note(f"opening {connections} connections")
        added_kb = asyncio.run(_open(relay, Pins(scratch / "pins.json"), connections))
    connection = {"count": connections, "kb": round(added_kb / connections, 1)}
    report = {**idle, "connection": connection, "machine": describe_machine()}
    return report | {"required": [requirement.evaluate(report) for requirement in REQUIRED]}


def resident(pid: int) -> dict[str, float]:
    """Return the memory of a process: resident, the private part of it, and proportional."""
    status, rollup = (Path(f"/proc/{pid}/{name}").read_text() for name in ("status", "smaps_rollup"))
    return {
        "rss_mb": _megabytes(status, "VmRSS"),
        "private_mb": _megabytes(status, "RssAnon"),
        "pss_mb": _megabytes(rollup, "Pss"),
    }


def _megabytes(text: str, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None, name
    return round(int(found[1]) / 1024, 1)


async def _open(relay: RelayProcess, pins: Pins, connections: int) -> float:
    """Open connections and return the kilobytes that they added to the relay."""
    async with AsyncExitStack() as stack:

        async def connect() -> None:
            client = await stack.enter_async_context(Client(relay.url, NodeKey.generate(), pins=pins))
            await stack.enter_async_context(await client.receive())

        for _ in range(_FIRST):
            await connect()
        before_mib = relay.resident_mib()
        for _ in range(connections):
            await connect()
        await asyncio.sleep(_SETTLE_S)
        return (relay.resident_mib() - before_mib) * 1024
