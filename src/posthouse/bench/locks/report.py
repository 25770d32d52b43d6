"""One run of all measurements of locks.

All ways take turns in every round, so that whatever else the machine does hits all of them; what counts is the median
of the rounds' ratios. A pair is an acquire and its release, each answered after the sync of its commit.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from posthouse.bench.locks.floor import CommitFloor, commit_floor
from posthouse.bench.locks.stream import LockStream, open_lock_stream
from posthouse.bench.relay.process import RunningRelay, running_relay
from posthouse.bench.requirement import Requirement

CLIENTS = 16
_WAIT_MS = 60_000
REQUIRED = (
    Requirement("one client, 2 x pairs of bare commits", "one_client", "ratio", "at least", 0.4),
    Requirement("16 clients on their own resources, of one client", "distinct", "ratio", "at least", 3.0),
    Requirement("16 clients on one resource, of one client", "contended", "ratio", "at least", 1.0),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done."""

    rounds: int = 21
    #: pairs per round of one client; many clients share four times as many
    pairs: int = 300


QUICK = Scale(rounds=2, pairs=40)


@dataclass(frozen=True, slots=True)
class Round:
    """What each way did in one round, per second."""

    bare_commits: float
    one_client: float
    distinct: float
    contended: float


def measure_locks(folder: Path, scale: Scale, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        running_relay(folder / "relay") as relay,
        commit_floor(folder / "bare.db") as floor,
    ):
        streams = runner.run(_open_all(relay))
        rounds: list[Round] = []
        for number in range(scale.rounds + 1):
            tell(f"round {number} of {scale.rounds}")
            rounds.append(_round(runner, streams, floor, scale))
        runner.run(_close_all(streams))
    return _report(rounds[1:], scale)  # the first one warmed up


def _round(runner: asyncio.Runner, streams: Sequence[LockStream], floor: CommitFloor, scale: Scale) -> Round:
    many = max(1, 4 * scale.pairs // CLIENTS)
    return Round(
        bare_commits=floor.rate(2 * scale.pairs),
        one_client=runner.run(_pairs_per_s(streams[:1], ["alone"], scale.pairs)),
        distinct=runner.run(_pairs_per_s(streams, [f"own/{n}" for n in range(CLIENTS)], many)),
        contended=runner.run(_pairs_per_s(streams, ["shared"] * CLIENTS, many, _WAIT_MS)),
    )


async def _pairs_per_s(streams: Sequence[LockStream], resources: Sequence[str], pairs: int, wait_ms: int = 0) -> float:
    started = time.perf_counter()
    await asyncio.gather(
        *(stream.pairs(resource, pairs, wait_ms) for stream, resource in zip(streams, resources, strict=True))
    )
    return pairs * len(streams) / (time.perf_counter() - started)


async def _open_all(relay: RunningRelay) -> list[LockStream]:
    return [await open_lock_stream(relay) for _ in range(CLIENTS)]


async def _close_all(streams: Sequence[LockStream]) -> None:
    for stream in streams:
        stream.close()


def _report(rounds: Sequence[Round], scale: Scale) -> dict[str, Any]:
    one = [each.one_client for each in rounds]
    report: dict[str, Any] = {
        "bench": "locks",
        "machine": {"python": platform.python_version(), "cpus": len(os.sched_getaffinity(0))},
        "settings": {"rounds": scale.rounds, "pairs": scale.pairs, "clients": CLIENTS},
        "synced_before_answer": True,
        "bare_commits_per_s": round(statistics.median(each.bare_commits for each in rounds)),
        "one_client": _section(one, [2 * each.one_client / each.bare_commits for each in rounds]),
        "distinct": _section([each.distinct for each in rounds], [each.distinct / each.one_client for each in rounds]),
        "contended": _section(
            [each.contended for each in rounds], [each.contended / each.one_client for each in rounds]
        ),
    }
    return report | {"required": [requirement.judge(report) for requirement in REQUIRED]}


def _section(pairs_per_s: Sequence[float], ratios: Sequence[float]) -> dict[str, Any]:
    return {
        "pairs_per_s": round(statistics.median(pairs_per_s)),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
