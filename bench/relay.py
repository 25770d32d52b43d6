"""All measurements of the relay in one run, with their required values.

Client and relay are separate processes. Ours and its floor alternate in every round; the result is the median of the
rounds' ratios.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from bench import relay_fan_out, relay_queries
from bench.comparison import Requirement, compare, describe_machine
from bench.floors import VerifyFloor, event_floor
from bench.processes import running_relay
from bench.raw_stream import EventSource, Publisher, open_publisher
from bench.relay_queries import large_store
from bench.scales import IN_FLIGHT, RELAY_SETTINGS, RelayScale

REQUIRED = (
    Requirement(
        "64 events in flight, relative to two cores that only verify", "in_flight_64", "ratio", "at least", 0.2, 0.35
    ),
    Requirement(
        "One event at a time, relative to bare commits of its rows", "one_at_a_time", "ratio", "at least", 0.35
    ),
    Requirement("Fan-out to 100 subscribers, deliveries/s", "fan_out", "deliveries_per_s", "at least", 100_000),
    Requirement("Stored query of 500 events, p50 ms", "query", "p50_ms", "at most", 10),
    Requirement("Publishing into the large store, relative to an empty one", "large_store", "ratio", "at least", 0.8),
)


def evaluate(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every requirement with its measured value."""
    return [requirement.evaluate(report) for requirement in REQUIRED]


def measure_relay(folder: Path, scale: RelayScale, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report: dict[str, Any] = {
            "bench": "relay",
            "machine": describe_machine(),
            "settings": dict(RELAY_SETTINGS),
            "synced_before_answer": True,
        }
        with running_relay(folder / "relay") as relay:
            publisher = runner.run(open_publisher(relay))
            on_progress("64 in flight")
            report["in_flight_64"] = _in_flight(runner, publisher, scale)
            on_progress("one at a time")
            report["one_at_a_time"] = _one_at_a_time(runner, publisher, folder / "bare.db", scale)
            on_progress("fan-out")
            report["fan_out"] = runner.run(relay_fan_out.measure_fan_out(relay, scale))
            report["fan_out"]["relay_mib"] = round(relay.resident_mib(), 1)
            runner.run(_close(publisher))
        report |= _measure_large(runner, folder, scale, on_progress)
    return report | {"required": evaluate(report)}


def _in_flight(runner: asyncio.Runner, publisher: Publisher, scale: RelayScale) -> dict[str, Any]:
    floor = VerifyFloor(EventSource().take(scale.events))
    commands = _fresh(publisher, scale.events)
    compared = compare(
        "in_flight_64",
        lambda: runner.run(publisher.rate(next(commands), IN_FLIGHT)),
        floor.rate,
        rounds=scale.rounds,
        required=0.2,
        aim=0.35,
    )
    floor.close()
    return compared.value()


def _one_at_a_time(runner: asyncio.Runner, publisher: Publisher, path: Path, scale: RelayScale) -> dict[str, Any]:
    commands, source = _fresh(publisher, scale.singles), EventSource()
    with event_floor(path) as floor:
        compared = compare(
            "one_at_a_time",
            lambda: runner.run(publisher.rate(next(commands), 1)),
            lambda: floor.rate(source.take(scale.singles)),
            rounds=3 * scale.rounds,  # the rounds are short and vary
            required=0.35,
            aim=0.5,
        )
    return compared.value()


def _measure_large(
    runner: asyncio.Runner, folder: Path, scale: RelayScale, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    on_progress(f"a store of {scale.stored:,} events")
    # a copy: this run publishes into it, and the next one must query the same store
    large = shutil.copytree(runner.run(large_store(scale.stored)), folder / "large")
    with running_relay(large) as full, running_relay(folder / "empty") as empty:
        on_progress("stored queries")
        queried = runner.run(relay_queries.measure_queries(full, scale))
        on_progress("publishing into the large store")
        ours, bare = runner.run(open_publisher(full)), runner.run(open_publisher(empty))
        full_commands, empty_commands = _fresh(ours, scale.events), _fresh(bare, scale.events)
        compared = compare(
            "large_store",
            lambda: runner.run(ours.rate(next(full_commands), IN_FLIGHT)),
            lambda: runner.run(bare.rate(next(empty_commands), IN_FLIGHT)),
            rounds=3 * scale.rounds,
            required=0.8,
            aim=1.0,
        )
        memory = round(full.resident_mib(), 1)
        for each in (ours, bare):
            runner.run(_close(each))
    return {"query": queried, "large_store": compared.value() | {"stored": scale.stored, "relay_mib": memory}}


def _fresh(publisher: Publisher, count: int) -> Any:
    """Yield commands for each round, signed before the round starts."""
    ready = publisher.source.commands(count)
    while True:
        yield ready
        ready = publisher.source.commands(count)


async def _close(publisher: Publisher) -> None:
    publisher.close()
