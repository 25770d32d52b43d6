"""How the cost of a whole pipeline run grows with the history: time, processor time, memory, disk.

Processor time of driver, JVM and workers hardly depends on what else the machine does. Memory is sampled a few times
a second: short peaks are missed, growth is not. Every size has a store and a lake of its own; a first small run
warms the session up and does not count.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.pipeline_stores import make_mixed_store
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import RunStep
from posthouse.pipeline.run.lake_run import bring_up_to_date

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# fields of /proc/PID/stat behind the name
_PARENT, _RESIDENT = 1, 21
_TIMES = slice(11, 15)  # user and system, its own and those of children that ended


class Process(NamedTuple):
    """What one process has taken so far."""

    pid: int
    parent: int
    name: str
    resident_bytes: int
    cpu_s: float


def family() -> list[Process]:
    """Return this process and everything below it."""
    everyone = {each.pid: each for each in _everyone()}
    found = {os.getpid()}
    while fresh := {pid for pid, each in everyone.items() if each.parent in found} - found:
        found |= fresh
    return [everyone[pid] for pid in found]


def cpu_seconds() -> float:
    """Return the processor time that this process and everything below it have taken."""
    return sum(each.cpu_s for each in family())


def _everyone() -> list[Process]:
    found: list[Process] = []
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        fields = rest.split()
        resident, times = int(fields[_RESIDENT]) * _PAGE_BYTES, sum(map(int, fields[_TIMES])) / _TICKS
        found.append(Process(int(path.parent.name), int(fields[_PARENT]), head.partition("(")[2], resident, times))
    return found


_LOOK_S = 0.25
_MIB = 1 << 20


class MemoryWatch:
    """Remembers the most that each kind of process had while the watch was open; a context manager."""

    def __init__(self) -> None:
        self._most: dict[str, int] = defaultdict(int)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def value(self) -> dict[str, int]:
        """Return the peaks in MiB: this process, the JVM, all workers together."""
        return {name: self._most[name] // _MIB for name in ("driver", "jvm", "workers")}

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_S):
            for name, found in _resident().items():
                self._most[name] = max(self._most[name], found)


def _resident() -> dict[str, int]:
    """Return the bytes that each kind of process has now."""
    found: dict[str, int] = defaultdict(int)
    for each in family():
        kind = "driver" if each.pid == os.getpid() else "jvm" if each.name == "java" else "workers"
        found[kind] += each.resident_bytes
    return found


WARM_UP_ROWS = 2_000


def measure_growth(
    spark: SparkSession, folder: Path, sizes: Sequence[int], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Run over a history of each size; return what each took, and the most that a step cost more."""
    _measure(spark, folder / "warm-up", min(WARM_UP_ROWS, *sizes))
    found: list[dict[str, Any]] = []
    for rows in sizes:
        tell(f"a whole run over {rows:,} rows")
        found.append(_measure(spark, folder / f"rows{rows}", rows))
        tell(
            f"took {found[-1]['seconds']} s, {found[-1]['cpu_seconds']} s of processors, MiB: {found[-1]['memory_mib']}"
        )
    seconds = [each["seconds"] for each in found]
    times = [round(later / earlier, 2) for earlier, later in pairwise(seconds)]
    return {"sizes": found, "times": max(times, default=1.0)}


def _measure(spark: SparkSession, folder: Path, rows: int) -> dict[str, Any]:
    store = make_mixed_store(folder / "relay", rows)
    clock, cpu_s = _Laps(), cpu_seconds()
    with MemoryWatch() as memory:
        bring_up_to_date(spark, Lake(folder / "lake"), [Access(str(store))], on_step=clock.note)
        cpu_s = cpu_seconds() - cpu_s
    seconds = clock.seconds()
    measured = {
        "rows": rows,
        "seconds": seconds,
        "copy_seconds": clock.copied,
        "cpu_seconds": round(cpu_s, 2),
        "rows_per_s": round(rows / seconds),
        "memory_mib": memory.value(),
        "store_mib": _size_of(folder / "relay"),
        "lake_mib": _size_of(folder / "lake"),
    }
    shutil.rmtree(folder)
    return measured


class _Laps:
    """When a run began, when its last copy was committed, and how long it has taken so far."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.copied = 0.0

    def note(self, step: RunStep) -> None:
        """Take a step's time."""
        if step.step == "copied":
            self.copied = self.seconds()

    def seconds(self) -> float:
        """Return the time since the beginning."""
        return round(time.perf_counter() - self._started, 2)


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // _MIB
