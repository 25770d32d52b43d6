"""Where the time of a lone publish goes: marks around the stages of client and relay, behind an environment variable.

    POSTHOUSE_BENCH_STAGES=1 python -m bench.stages

The product has no marks. Here its functions are wrapped, in this process for the client and in the relay that it starts
through this module; each stage counts the time of its functions without the marked functions that they call. What no
mark covers (the event loop, the kernel, the wait for the other side) is the rest of the round trip. The marks
themselves cost about a microsecond each.
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
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import uvloop

from bench.processes import STAGES, running_relay

_EVENTS = 2_000
_WARM_UP = 300
#: function -> stage, in the order of the path
CLIENT_STAGES = {
    "posthouse.client.trust.signing:Signer.draft": "canonical form and id",
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
    "posthouse.relay.accept.verify:verify": "verify the signature",
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
    """Times of stages in one process."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.times_ns: dict[str, list[int]] = defaultdict(list)

    def install(self, stages: Mapping[str, str]) -> None:
        """Wrap the functions of the stages."""
        for path, stage in stages.items():
            module, _, names = path.partition(":")
            owner: Any = import_module(module)
            *outer, name = names.split(".")
            for each in outer:
                owner = getattr(owner, each)
            setattr(owner, name, self._wrap(getattr(owner, name), stage))

    def _wrap(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            async def marked_coroutine(*args: Any, **options: Any) -> Any:
                began = self._begin()
                try:
                    return await function(*args, **options)
                finally:
                    self._end(stage, began)

            return marked_coroutine

        def marked(*args: Any, **options: Any) -> Any:
            began = self._begin()
            try:
                return function(*args, **options)
            finally:
                self._end(stage, began)

        return marked

    def _begin(self) -> int:
        if not hasattr(self._local, "inner_ns"):
            self._local.inner_ns = [0]
        self._local.inner_ns.append(0)
        return time.perf_counter_ns()

    def _end(self, stage: str, began: int) -> None:
        whole = time.perf_counter_ns() - began
        inner = self._local.inner_ns.pop()
        self._local.inner_ns[-1] += whole
        self.times_ns[stage].append(whole - inner)

    def clear(self) -> None:
        """Forget the times so far."""
        self.times_ns.clear()

    def per_event_us(self, events: int) -> dict[str, float]:
        """Return the time of each stage for one event: the median of its calls, times the calls for an event."""
        medians = {stage: statistics.median(times) * len(times) / events for stage, times in self.times_ns.items()}
        return {stage: round(ns / 1000, 1) for stage, ns in medians.items()}


def run_marked(folder: str) -> None:
    """Run `posthouse` with marks on the stages of a relay, and write their times when the process ends."""
    from posthouse.cli.main import main

    marks = Marks()
    marks.install(RELAY_STAGES)

    def write() -> None:
        path = Path(folder) / f"{os.getpid()}.json"
        path.write_text(json.dumps(marks.per_event_us(_EVENTS + _WARM_UP)), encoding="utf-8")

    atexit.register(write)
    main()


async def publish_singly(url: str, marks: Marks) -> float:
    """Publish events one after the other; return the median round trip in microseconds."""
    from posthouse import Client
    from posthouse.keys import NodeKey

    times_ns: list[int] = []
    async with Client(url, NodeKey.generate()) as client:
        for number in range(_WARM_UP + _EVENTS):
            if number == _WARM_UP:
                marks.clear()
                times_ns.clear()
            began = time.perf_counter_ns()
            await client.publish(f"{number} {'x' * 240}", kind=1)
            times_ns.append(time.perf_counter_ns() - began)
    return statistics.median(times_ns) / 1000


def measure_stages() -> tuple[float, dict[str, float], dict[str, float]]:
    """Return the median round trip, and the times of the stages of client and relay, all in microseconds."""
    marks = Marks()
    marks.install(CLIENT_STAGES)
    with tempfile.TemporaryDirectory(prefix="posthouse-bench-", dir=Path.cwd()) as scratch:
        os.environ[STAGES] = scratch
        with (
            running_relay(Path(scratch) / "relay") as relay,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            whole_us = runner.run(publish_singly(relay.url, marks))
        (written,) = Path(scratch).glob("*.json")
        relay_us = json.loads(written.read_text(encoding="utf-8"))
    return whole_us, marks.per_event_us(_EVENTS), relay_us


def print_stages() -> None:
    """Measure and print the table of docs/explain/speed.md."""
    whole_us, client_us, relay_us = measure_stages()
    print("| stage | microseconds |\n| --- | --- |")  # noqa: T201 - the table is the result
    for side, stages, found in (("client", CLIENT_STAGES, client_us), ("relay", RELAY_STAGES, relay_us)):
        for stage in dict.fromkeys(stages.values()):
            print(f"| {side}: {stage} | {found.get(stage, 0.0)} |")  # noqa: T201
    rest_us = whole_us - sum(client_us.values()) - sum(relay_us.values())
    print(f"| event loops, kernel, switches between the processes | {rest_us:.1f} |")  # noqa: T201
    print(f"| round trip | {whole_us:.1f} |")  # noqa: T201


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_marked(os.environ[STAGES])
    elif STAGES in os.environ:
        print_stages()
    else:
        sys.exit(f"set {STAGES}=1: the marks slow down what they measure")
