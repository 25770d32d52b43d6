"""All measurements of locks in one run, compared with bare commits: one client, 16 on 16 resources, 16 on one.

A pair is an acquire and its release, each answered after the sync of its commit, on a bare stream with one command
in flight. All ways alternate in every round; the result is the median of the rounds' ratios.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench.comparison import Requirement, describe_machine
from bench.floors import LockFloor, lock_floor
from bench.processes import RelayProcess, running_relay
from bench.raw_stream import RawStream
from bench.scales import LocksScale
from posthouse.keys import NodeKey

LEASE_MS = 30_000
_TIMEOUT_S = 120


class LockStream(RawStream):
    """One connection with one lock command in flight."""

    def __init__(self) -> None:
        super().__init__(b"LOCKED")
        self._frames = bytearray()
        self._done: asyncio.Future[None] | None = None
        self._commands = 0
        self._resource = ""
        self._left = 0
        self._wait_ms = 0
        self._is_held = False

    def data_received(self, data: bytes) -> None:
        if self._greeting is not None:
            super().data_received(data)
            return
        self._frames += data
        while (size := _frame_size(self._frames)) is not None:
            start, end = size
            self._on_answer(bytes(self._frames[start:end]))
            del self._frames[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("the relay closed the stream"))

    async def pairs(self, resource: str, count: int, wait_ms: int) -> None:
        """Acquire and release a resource `count` times, waiting while other clients hold it."""
        if not count:
            return
        self._resource, self._left, self._wait_ms = resource, count, wait_ms
        self._done = asyncio.get_running_loop().create_future()
        self._acquire()
        await self._done

    def _acquire(self) -> None:
        self._send_command("acquire", {"resource": self._resource, "lease_ms": LEASE_MS, "wait_ms": self._wait_ms})

    def _send_command(self, op: str, arguments: dict[str, Any]) -> None:
        self._commands += 1
        self.send([msgspec.json.encode(["LOCK", f"{self._commands}", op, arguments])])

    def _on_answer(self, text: bytes) -> None:
        """Handle an answer and send the next command at once, without waking a task."""
        done = self._done
        if not text.startswith(b'["LOCKED"') or done is None or done.done():
            raise RuntimeError(f"unexpected: {text[:200]!r}")
        answer = msgspec.json.decode(text)[2]
        if "code" in answer:
            done.set_exception(RuntimeError(f"{self._resource}: {answer['code']}"))
        elif not self._is_held:
            self._is_held = True
            self._send_command("release", {"resource": self._resource, "token": answer["token"]})
        else:
            self._count_pair(done)

    def _count_pair(self, done: asyncio.Future[None]) -> None:
        self._is_held = False
        self._left -= 1
        if self._left:
            self._acquire()
        else:
            done.set_result(None)


async def open_lock_stream(relay: RelayProcess) -> LockStream:
    """Connect and authenticate with a new key."""
    async with asyncio.timeout(_TIMEOUT_S):
        _, stream = await asyncio.get_running_loop().create_connection(LockStream, relay.host, relay.port)
        await stream.upgrade(relay.host, relay.port)
        await stream.authenticate(NodeKey.generate())
    return stream


def _frame_size(data: bytearray) -> tuple[int, int] | None:
    """Return start and end of the text of the first frame, or None while it is incomplete."""
    if len(data) < 4:
        return None
    size, start = data[1], 2
    if size == 126:
        size, start = int.from_bytes(data[2:4], "big"), 4
    return (start, start + size) if len(data) >= start + size else None


CLIENTS = 16
_WAIT_MS = 60_000
REQUIRED = (
    Requirement("One client: commits of its pairs, relative to bare commits", "one_client", "ratio", "at least", 0.4),
    Requirement("16 clients on 16 resources, relative to one client", "distinct", "ratio", "at least", 3.0),
    Requirement("16 clients on one resource, relative to one client", "contended", "ratio", "at least", 1.0),
)


@dataclass(frozen=True, slots=True)
class Round:
    """The rates of one round, per second."""

    bare_commits: float
    one_client: float
    distinct: float
    contended: float


def measure_locks(folder: Path, scale: LocksScale, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    with (
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        running_relay(folder / "relay") as relay,
        lock_floor(folder / "bare.db") as floor,
    ):
        streams = runner.run(_open_all(relay))
        rounds: list[Round] = []
        for number in range(scale.rounds + 1):
            on_progress(f"round {number} of {scale.rounds}")
            rounds.append(_round(runner, streams, floor, scale))
        runner.run(_close_all(streams))
    return _report(rounds[1:], scale)  # without the warm-up round


def _round(runner: asyncio.Runner, streams: Sequence[LockStream], floor: LockFloor, scale: LocksScale) -> Round:
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


async def _open_all(relay: RelayProcess) -> list[LockStream]:
    return [await open_lock_stream(relay) for _ in range(CLIENTS)]


async def _close_all(streams: Sequence[LockStream]) -> None:
    for stream in streams:
        stream.close()


def _report(rounds: Sequence[Round], scale: LocksScale) -> dict[str, Any]:
    one = [each.one_client for each in rounds]
    report: dict[str, Any] = {
        "bench": "locks",
        "machine": describe_machine(),
        "settings": {"rounds": scale.rounds, "pairs": scale.pairs, "clients": CLIENTS},
        "synced_before_answer": True,
        "bare_commits_per_s": round(statistics.median(each.bare_commits for each in rounds)),
        "one_client": _section(one, [2 * each.one_client / each.bare_commits for each in rounds]),
        "distinct": _section([each.distinct for each in rounds], [each.distinct / each.one_client for each in rounds]),
        "contended": _section(
            [each.contended for each in rounds], [each.contended / each.one_client for each in rounds]
        ),
    }
    return report | {"required": [requirement.evaluate(report) for requirement in REQUIRED]}


def _section(pairs_per_s: Sequence[float], ratios: Sequence[float]) -> dict[str, Any]:
    return {
        "pairs_per_s": round(statistics.median(pairs_per_s)),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
