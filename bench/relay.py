"""All measurements of the relay in one run, and what they have to reach.

Client and relay are separate processes. Ours and its floor alternate in every round; the result is the median of the
rounds' ratios.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from bench import relay_fan_out, relay_queries
from bench.comparison import Requirement, compare
from bench.floors import VerifyFloor, event_floor
from bench.processes import running_relay
from bench.raw_stream import Ingest, Supply, open_ingest
from bench.relay_queries import large_store
from bench.scales import IN_FLIGHT, RELAY_SETTINGS, RelayScale

REQUIRED = (
    Requirement("64 in flight, of two cores that verify", "in_flight_64", "ratio", "at least", 0.2, 0.35),
    Requirement("one at a time, of the rows committed bare", "one_at_a_time", "ratio", "at least", 0.35),
    Requirement("fan-out to 100, deliveries/s", "fan_out", "deliveries_per_s", "at least", 100_000),
    Requirement("stored query of 500 events, p50 ms", "query", "p50_ms", "at most", 10),
    Requirement("ingest into the large store, of an empty one", "large_store", "ratio", "at least", 0.8),
)


def evaluate(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every requirement with what was measured."""
    return [requirement.judge(report) for requirement in REQUIRED]


Run = Callable[[Awaitable[float]], float]


def measure_relay(folder: Path, scale: RelayScale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report: dict[str, Any] = {
            "bench": "relay",
            "machine": {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0))},
            "settings": dict(RELAY_SETTINGS),
            "synced_before_answer": True,
        }
        with running_relay(folder / "relay") as relay:
            ingest = runner.run(open_ingest(relay))
            tell("64 in flight")
            report["in_flight_64"] = _in_flight(runner, ingest, scale)
            tell("one at a time")
            report["one_at_a_time"] = _one_at_a_time(runner, ingest, folder / "bare.db", scale)
            tell("fan-out")
            report["fan_out"] = runner.run(relay_fan_out.measure_fan_out(relay, scale))
            report["fan_out"]["relay_mib"] = round(relay.resident_mib(), 1)
            runner.run(_close(ingest))
        report |= _measure_large(runner, folder, scale, tell)
    return report | {"required": evaluate(report)}


def _in_flight(runner: asyncio.Runner, ingest: Ingest, scale: RelayScale) -> dict[str, Any]:
    floor = VerifyFloor(Supply().take(scale.events))
    commands = _fresh(ingest, scale.events)
    compared = compare(
        "in_flight_64",
        lambda: runner.run(ingest.rate(next(commands), IN_FLIGHT)),
        floor.rate,
        rounds=scale.rounds,
        required=0.2,
        aim=0.35,
    )
    floor.close()
    return compared.value()


def _one_at_a_time(runner: asyncio.Runner, ingest: Ingest, path: Path, scale: RelayScale) -> dict[str, Any]:
    commands, supply = _fresh(ingest, scale.singles), Supply()
    with event_floor(path) as floor:
        compared = compare(
            "one_at_a_time",
            lambda: runner.run(ingest.rate(next(commands), 1)),
            lambda: floor.rate(supply.take(scale.singles)),
            rounds=3 * scale.rounds,  # they are short, and differ
            required=0.35,
            aim=0.5,
        )
    return compared.value()


def _measure_large(
    runner: asyncio.Runner, folder: Path, scale: RelayScale, tell: Callable[[str], None]
) -> dict[str, Any]:
    tell(f"a store of {scale.stored:,} events")
    large = runner.run(large_store(scale.stored))
    with running_relay(large) as full, running_relay(folder / "empty") as empty:
        tell("stored queries")
        queried = runner.run(relay_queries.measure_queries(full, scale))
        tell("ingest into the large store")
        ours, bare = runner.run(open_ingest(full)), runner.run(open_ingest(empty))
        mine, theirs = _fresh(ours, scale.events), _fresh(bare, scale.events)
        compared = compare(
            "large_store",
            lambda: runner.run(ours.rate(next(mine), IN_FLIGHT)),
            lambda: runner.run(bare.rate(next(theirs), IN_FLIGHT)),
            rounds=3 * scale.rounds,
            required=0.8,
            aim=1.0,
        )
        memory = round(full.resident_mib(), 1)
        for each in (ours, bare):
            runner.run(_close(each))
    return {"query": queried, "large_store": compared.value() | {"stored": scale.stored, "relay_mib": memory}}


def _fresh(ingest: Ingest, count: int) -> Any:
    """Yield commands that were signed before the round began to count."""
    ready = ingest.supply.commands(count)
    while True:
        yield ready
        ready = ingest.supply.commands(count)


async def _close(ingest: Ingest) -> None:
    ingest.close()
