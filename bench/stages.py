"""Where the time of a publish goes: marks around the stages of client and relay, behind an environment variable.

    POSTHOUSE_BENCH_STAGES=1 python -m bench.stages

It measures an event that is alone, one of 64 that are sent as one list, and one of 64 calls that share a signature.

The product has no marks. Here its functions are wrapped, in this process for the client and in the relay that it starts
through this module; each stage counts the time of its functions without the marked functions that they call. What no
mark covers (the event loop, the kernel, the wait for the other side) is the rest of the round trip. Verifying threads
run at the same time, so with 64 signatures the stages may add up to more than the round trip. The marks themselves cost
about a microsecond each.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import uvloop

from bench.processes import STAGES, running_relay
from bench.scales import IN_FLIGHT, KIND
from posthouse.client import Client, Pins
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError

_ROUNDS = 2_000  # of a lone event; a round of 64 events is repeated less often
_WARM_UP = 300
_ROUNDS_64 = 150
_WARM_UP_64 = 20
_BODY = "x" * 256
#: function -> stage, in the order of the path
CLIENT_STAGES = {
    "posthouse.client.trust.signing:Signer.draft": "canonical form and id",
    "posthouse.client.trust.signing:sign_drafts": "signature",
    "posthouse.client.stream.publisher:sign_drafts": "signature",
    "posthouse.client.stream.publisher:Publisher._send": "table of unanswered events, deadline",
    "posthouse.client.stream.pending:PendingCommands.add": "table of unanswered events, deadline",
    "posthouse.client.stream.connection:Connection._write_frame": "WebSocket frame to the kernel",
    "posthouse.client.stream.connection:read_frame": "parse the answer",
    "posthouse.client.stream.pending:PendingCommands._on_ok": "find and wake the caller",
}
RELAY_STAGES = {
    "posthouse.relay.stream.connection:Connection.take_frame": "commands of the frame, submission",
    "posthouse.relay.accept.verify:read_event": "parse the event",
    "posthouse.relay.accept.verify:check_structure": "structure, canonical form and id",
    "posthouse.relay.accept.verify:verify_job": "kind and right to write",
    "posthouse.relay.accept.verify:verify_whole_batch": "kind and right to write",
    "posthouse.relay.accept.verify:verify": "verify the signature",
    "posthouse.relay.accept.verify:is_whole_batch": "verify the signature",
    "posthouse.relay.accept.verify:event_row": "row and index terms",
    "posthouse.relay.accept.authorize:Authorizer.authorize": "authorize",
    "posthouse.relay.accept.group_commit:GroupCommitter.flush": "group, hand over to the writer",
    "posthouse.relay.accept.path:commit_group": "duplicates, deletions, limits",
    "posthouse.relay.store.sqlite.store:SqliteUnit.add_events": "rows of event and record",
    "posthouse.relay.store.sqlite.event_index:EventIndex.write": "index, once for 128 events",
    "posthouse.storage.writer:Writer._commit": "BEGIN, journal, COMMIT with its sync",
    "posthouse.relay.accept.path:AcceptPath.on_committed": "results, live subscriptions",
    "posthouse.relay.stream.connection:Connection._answer": "OK to the kernel",
}


class Marks:
    """Times of the functions of the stages in one process."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.times_ns: dict[str, list[int]] = defaultdict(list)

    def install(self, stages: Mapping[str, str]) -> None:
        """Wrap the functions of the stages."""
        for path in stages:
            module, _, names = path.partition(":")
            owner: Any = import_module(module)
            *outer, name = names.split(".")
            for each in outer:
                owner = getattr(owner, each)
            setattr(owner, name, self._wrap(getattr(owner, name), path))

    def _wrap(self, function: Callable[..., Any], path: str) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            async def marked_coroutine(*args: Any, **options: Any) -> Any:
                began = self._begin()
                try:
                    return await function(*args, **options)
                finally:
                    self._end(path, began)

            return marked_coroutine

        def marked(*args: Any, **options: Any) -> Any:
            began = self._begin()
            try:
                return function(*args, **options)
            finally:
                self._end(path, began)

        return marked

    def _begin(self) -> int:
        if not hasattr(self._local, "inner_ns"):
            self._local.inner_ns = [0]
        self._local.inner_ns.append(0)
        return time.perf_counter_ns()

    def _end(self, path: str, began: int) -> None:
        whole = time.perf_counter_ns() - began
        inner = self._local.inner_ns.pop()
        self._local.inner_ns[-1] += whole
        self.times_ns[path].append(whole - inner)

    def clear(self) -> None:
        """Forget the times so far."""
        self.times_ns.clear()


def per_event_us(stages: Mapping[str, str], times_ns: Mapping[str, Sequence[int]], events: int) -> list[float]:
    """Return the time of each stage for one event: the mean of a function's calls, times its calls for an event.

    The slowest twentieth of the calls is left out of the mean: other work of the machine delayed them.
    """
    found = dict.fromkeys(stages.values(), 0.0)
    for path, times in times_ns.items():
        usual = sorted(times)[: len(times) * 19 // 20 or 1]
        found[stages[path]] += statistics.mean(usual) * len(times) / events / 1000
    return list(found.values())


def run_marked(folder: str) -> None:
    """Run `posthouse` with marks on the stages of a relay, and write their times when the process ends."""
    from posthouse.cli.main import main

    marks = Marks()
    marks.install(RELAY_STAGES)

    def write() -> None:
        path = Path(folder) / f"{os.getpid()}.json"
        path.write_text(json.dumps(marks.times_ns), encoding="utf-8")

    atexit.register(write)
    main()


async def publish_one(client: Client) -> None:
    """Publish an event and wait for its answer."""
    await client.publish(_BODY, kind=KIND)


async def publish_list(client: Client) -> None:
    """Publish one list of events, each with its own signature."""
    events = [client.sign(_BODY, kind=KIND) for _ in range(IN_FLIGHT)]
    for answer in await client.publish_many(events):
        if isinstance(answer, PosthouseError):
            raise answer


async def publish_calls(client: Client) -> None:
    """Publish with calls of one loop iteration: they share a signature."""
    await asyncio.gather(*(client.publish(_BODY, kind=KIND) for _ in range(IN_FLIGHT)))


@dataclass(frozen=True, slots=True)
class Way:
    """One way to publish, as a column of the table."""

    title: str
    #: events of a round
    events: int
    rounds: int
    warm_up: int
    publish: Callable[[Client], Awaitable[None]]


WAYS = (
    Way("alone", 1, _ROUNDS, _WARM_UP, publish_one),
    Way("one of 64", IN_FLIGHT, _ROUNDS_64, _WARM_UP_64, publish_list),
    Way("one of 64, batch signature", IN_FLIGHT, _ROUNDS_64, _WARM_UP_64, publish_calls),
)


async def time_rounds(way: Way, url: str, marks: Marks) -> float:
    """Publish; return the median time of an event in microseconds."""
    times_ns: list[int] = []
    async with Client(url, NodeKey.generate(), pins=Pins(None)) as client:
        for number in range(way.warm_up + way.rounds):
            if number == way.warm_up:
                marks.clear()
                times_ns.clear()
            began = time.perf_counter_ns()
            await way.publish(client)
            times_ns.append(time.perf_counter_ns() - began)
    return statistics.median(times_ns) / way.events / 1000


def measure_stages(way: Way, marks: Marks) -> list[float]:
    """Return the times of an event in microseconds: each stage of the client and of the relay, rest, whole."""
    marks.clear()
    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=Path.cwd()) as scratch:
        os.environ[STAGES] = scratch
        with (
            running_relay(Path(scratch) / "relay") as relay,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            whole_us = runner.run(time_rounds(way, relay.url, marks))
        (written,) = Path(scratch).glob("*.json")
        relay_ns = json.loads(written.read_text(encoding="utf-8"))
    stages_us = per_event_us(CLIENT_STAGES, marks.times_ns, way.rounds * way.events)
    stages_us += per_event_us(RELAY_STAGES, relay_ns, (way.rounds + way.warm_up) * way.events)
    return [*stages_us, whole_us - sum(stages_us), whole_us]


def print_stages() -> None:
    """Measure and print the table of docs/explain/speed.md."""
    marks = Marks()
    marks.install(CLIENT_STAGES)
    columns = [measure_stages(way, marks) for way in WAYS]
    names = [f"client: {stage}" for stage in dict.fromkeys(CLIENT_STAGES.values())]
    names += [f"relay: {stage}" for stage in dict.fromkeys(RELAY_STAGES.values())]
    names += ["event loops, tasks, kernel, switches between the processes", "whole"]
    rows = [("stage", *(way.title for way in WAYS)), ("---",) * (1 + len(WAYS))]
    rows += [(name, *(f"{value:.1f}" for value in values)) for name, *values in zip(names, *columns, strict=True)]
    for row in rows:
        print(f"| {' | '.join(row)} |")  # noqa: T201 - the table is the result


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_marked(os.environ[STAGES])
    elif STAGES in os.environ:
        print_stages()
    else:
        sys.exit(f"set {STAGES}=1: the marks slow down what they measure")
