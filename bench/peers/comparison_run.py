"""One run of the comparison: start the contestants, interleave their operations, stop them, and report.

Every iteration runs one operation of every contestant, one after the other and in random order, so that each of them
has the whole machine while it is timed, and other load of the machine affects all alike. A repetition's rate is its
items divided by the sum of its timed seconds; the result is the median of the repetitions. On a busy machine most
operations wait for a processor; the report has the rate of the fastest ones too, and the load average.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import uvloop

from bench.comparison import describe_machine, median, percentile
from bench.peers.bare_files import BareFiles
from bench.peers.etcd_keys import Etcd
from bench.peers.jetstream import JetStream
from bench.peers.peers_report import evaluate_goals
from bench.peers.postgresql_tables import PostgreSql
from bench.peers.posthouse_itself import PosthouseBus, PosthouseRelay
from bench.peers.rabbitmq_queues import RabbitMq
from bench.peers.redis_streams import Redis
from bench.peers.works import BODY_BYTES, Configuration, Contestant, Operation, Plan, Work
from posthouse.model.clock import SystemClock, format_utc

CONTESTANTS: tuple[type[Contestant], ...] = (
    BareFiles,
    Redis,
    PostgreSql,
    JetStream,
    RabbitMq,
    Etcd,
    PosthouseRelay,
    PosthouseBus,
)
_WARM_UPS = 3
_OPERATION_TIMEOUT_S = 120
#: share of the operations that a busy machine hardly delays: the slowest of them stands for an idle machine
_UNDISTURBED = 0.05
#: Called with the title of the work after every iteration.
OnProgress = Callable[[str], None]


def compare_peers(
    folder: Path,
    plans: Mapping[Work, Plan],
    repetitions: int,
    on_progress: OnProgress,
    contestants: Sequence[type[Contestant]] = CONTESTANTS,
) -> dict[str, Any]:
    """Run the works of `plans` in `folder`, which must be empty, and return the report."""
    folder.chmod(0o711)  # a server that runs as another user must reach its own directory below
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_compare(folder, plans, repetitions, on_progress, [each() for each in contestants]))


async def _compare(
    folder: Path,
    plans: Mapping[Work, Plan],
    repetitions: int,
    on_progress: OnProgress,
    contestants: Sequence[Contestant],
) -> dict[str, Any]:
    needed = [each for each in contestants if not plans.keys().isdisjoint(each.operations())]
    skipped = {
        each.name: f"missing: {', '.join(absent)}; bench/peers/install" for each in needed if (absent := each.missing())
    }
    report: dict[str, Any] = {
        "bench": "peers",
        "at": format_utc(SystemClock().wall_ns()),
        "machine": describe_machine() | {"kernel": platform.release(), "processor": _processor()},
        "load_average": [round(os.getloadavg()[0], 1)],
        "body_bytes": BODY_BYTES,
        "repetitions": repetitions,
        "skipped": skipped,
    }
    async with AsyncExitStack() as stack:
        running = [each for each in needed if each.name not in skipped]
        report["contestants"] = {each.name: msgspec.to_builtins(await _start(each, folder, stack)) for each in running}
        report["works"] = {}
        for work, plan in plans.items():
            operations = [operation for each in running for operation in each.operations().get(work, ())]
            timings = await _measure(operations, plan, repetitions, on_progress)
            report["works"][work.value] = _work_report(plan, timings)
    report["load_average"].append(round(os.getloadavg()[0], 1))
    return report | {"required": evaluate_goals(report)}


async def _start(contestant: Contestant, folder: Path, stack: AsyncExitStack) -> Configuration:
    own = folder / contestant.name.replace(" ", "-")
    own.mkdir()
    stack.push_async_callback(contestant.stop)
    return await contestant.start(own)


#: The seconds of each operation of each repetition, per name.
Timings = dict[str, list[list[float]]]


async def _measure(operations: Sequence[Operation], plan: Plan, repetitions: int, on_progress: OnProgress) -> Timings:
    """Run the operations of a work, after a warm-up that does not count."""
    for operation in operations:
        for _ in range(min(_WARM_UPS, plan.operations)):
            await _timed(operation)
    order = random.Random(0)
    timings: Timings = {operation.name: [] for operation in operations}
    for _ in range(repetitions):
        for each in timings.values():
            each.append([])
        for _ in range(plan.operations):
            for operation in order.sample(operations, len(operations)):
                timings[operation.name][-1].append(await _timed(operation))
            on_progress(plan.title)
    return timings


async def _timed(operation: Operation) -> float:
    async with asyncio.timeout(_OPERATION_TIMEOUT_S):
        if operation.prepare is not None:
            await operation.prepare()
        started = perf_counter()
        await operation.run()
        return perf_counter() - started


def _work_report(plan: Plan, timings: Timings) -> dict[str, Any]:
    rates = {name: [plan.items * len(each) / sum(each) for each in every] for name, every in timings.items()}
    return {
        "title": plan.title,
        "items_per_operation": plan.items,
        "operations_per_repetition": plan.operations,
        "per_s": {name: round(median(each)) for name, each in rates.items()},
        "repetitions_per_s": {name: [round(rate) for rate in each] for name, each in rates.items()},
        "undisturbed_per_s": {
            name: round(plan.items / percentile(list(chain(*every)), _UNDISTURBED)) for name, every in timings.items()
        },
    }


def _processor() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
