"""How costs grow with the history: of a full run, of a run with 100 new records, and of a query in a new process.

Measured are time, processor time, memory, files and disk. A longer history has more days of the same size, with events.
The processor time of driver, JVM and workers hardly depends on other load of the machine. Memory is sampled a few
times a second: it misses short peaks but not growth. Every size has its own store and lake; a first small run warms
the session up and does not count.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.pipeline_stores import MixedStore
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run.copy_feeds import RunStep
from posthouse.pipeline.run.lake_run import bring_up_to_date

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
# fields of /proc/PID/stat after the name
_PARENT, _RESIDENT = 1, 21
_TIMES = slice(11, 15)  # user and system time of the process and of its ended children


class Process(NamedTuple):
    """The memory and processor time of one process."""

    pid: int
    parent: int
    name: str
    resident_bytes: int
    cpu_s: float


def family() -> list[Process]:
    """Return this process and its descendants."""
    processes = {each.pid: each for each in _all_processes()}
    found = {os.getpid()}
    while fresh := {pid for pid, each in processes.items() if each.parent in found} - found:
        found |= fresh
    return [processes[pid] for pid in found]


def cpu_seconds() -> float:
    """Return the processor time of this process and its descendants."""
    return sum(each.cpu_s for each in family())


def _all_processes() -> list[Process]:
    found: list[Process] = []
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
        fields = rest.split()
        resident, times = int(fields[_RESIDENT]) * _PAGE_BYTES, sum(map(int, fields[_TIMES])) / _TICKS
        found.append(Process(int(path.parent.name), int(fields[_PARENT]), head.partition("(")[2], resident, times))
    return found


_SAMPLE_S = 0.25
_QUERY_SAMPLE_S = 0.05
_MIB = 1 << 20


class MemoryWatch:
    """A context manager that samples the peak memory of each kind of process."""

    def __init__(self) -> None:
        self._peaks: dict[str, int] = defaultdict(int)
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
        return {name: self._peaks[name] // _MIB for name in ("driver", "jvm", "workers")}

    def _watch(self) -> None:
        while not self._done.wait(_SAMPLE_S):
            for name, found in _resident().items():
                self._peaks[name] = max(self._peaks[name], found)


def _resident() -> dict[str, int]:
    """Return the current resident memory of each kind of process."""
    found: dict[str, int] = defaultdict(int)
    for each in family():
        kind = "driver" if each.pid == os.getpid() else "jvm" if each.name == "java" else "workers"
        found[kind] += each.resident_bytes
    return found


WARM_UP_ROWS = 2_000
ROWS_PER_DAY = 10_000
NEW_ROWS = 100
_TENFOLD = 10


def measure_growth(
    spark: SparkSession, folder: Path, sizes: Sequence[int], new_runs: int, on_progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run over a history of each size; return the costs, and the factors by which ten times the history costs more.

    `cold` is the first run of the session, which compiles every plan. Each whole run is followed by `new_runs` with
    a few new records, and by a query that starts a Spark of its own.
    """
    cold = _measure(spark, folder / "warm-up", min(WARM_UP_ROWS, *sizes), new_runs)
    found: list[dict[str, Any]] = []
    for rows in sizes:
        on_progress(f"a whole run over {rows:,} rows")
        found.append(_measure(spark, folder / f"rows{rows}", rows, new_runs))
        on_progress(
            f"took {found[-1]['seconds']} s, {found[-1]['cpu_seconds']} s of processors, MiB: {found[-1]['memory_mib']}"
        )
    return {
        "cold": cold,
        "sizes": found,
        "times": largest_factor(sizes, [each["seconds"] for each in found]),
        "new_cpu_seconds": found[-1]["new_cpu_seconds"],
        "new_times": largest_factor(sizes, [each["new_cpu_seconds"] for each in found]),
        "query_seconds": found[-1]["query"]["seconds"],
    }


def largest_factor(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the largest factor between the costs of a size and of ten times that size; without one, of neighbours."""
    measured = list(zip(sizes, costs, strict=True))
    tenfold = [(cost, later) for size, cost in measured for other, later in measured if other == _TENFOLD * size]
    return max((round(later / cost, 2) for cost, later in tenfold or pairwise(costs)), default=1.0)


def _measure(spark: SparkSession, folder: Path, rows: int, new_runs: int) -> dict[str, Any]:
    store, lake = MixedStore(folder / "relay", ROWS_PER_DAY), Lake(folder / "lake")
    store.grow(rows)
    clock, cpu_s = _Laps(), cpu_seconds()
    with MemoryWatch() as memory:
        bring_up_to_date(spark, lake, [Access(str(store.path))], on_step=clock.note)
        cpu_s = cpu_seconds() - cpu_s
    seconds = clock.seconds()
    new = [_measure_new(spark, lake, store) for _ in range(new_runs)]
    measured = {
        "rows": rows,
        "seconds": seconds,
        "copy_seconds": clock.copied,
        "cpu_seconds": round(cpu_s, 2),
        "new_cpu_seconds": min(cpu_s for cpu_s, _seconds in new),
        "new_seconds": min(seconds for _cpu_s, seconds in new),
        "new_runs": new,
        "query": measure_query(lake),
        "most_files": max(len(lake.delta(name).files()) for name in lake.names()),
        "rows_per_s": round(rows / seconds),
        "memory_mib": memory.value(),
        "store_mib": _size_of(folder / "relay"),
        "lake_mib": _size_of(folder / "lake"),
    }
    shutil.rmtree(folder)
    return measured


def _measure_new(spark: SparkSession, lake: Lake, store: MixedStore) -> tuple[float, float]:
    """Return the processor seconds and the seconds of a run with a few new records."""
    store.grow(NEW_ROWS)
    cpu_s, started = cpu_seconds(), time.perf_counter()
    bring_up_to_date(spark, lake, [Access(str(store.path))])
    return round(cpu_seconds() - cpu_s, 2), round(time.perf_counter() - started, 2)


_QUESTION = "SELECT state, count(*) AS deliveries FROM silver_deliveries GROUP BY state"


def measure_query(lake: Lake) -> dict[str, float]:
    """Return the seconds and processor seconds of a query that starts a Spark of its own.

    Java outlives the command for a moment, and no process waits for it, so its processor time is sampled.
    """
    others, cpu_s = {each.pid for each in family()}, dict[int, float]()
    command = [sys.executable, "-m", "posthouse.cli.main", "pipeline", "query", _QUESTION]
    started = time.perf_counter()
    with subprocess.Popen([*command, "--lake", lake.location, "--json"], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            cpu_s |= {each.pid: each.cpu_s for each in family() if each.pid not in others}
            time.sleep(_QUERY_SAMPLE_S)
        seconds = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"the query ended with {process.returncode}")
    return {"seconds": round(seconds, 2), "cpu_seconds": round(sum(cpu_s.values()), 2)}


class _Laps:
    """Times a run: its total, and the time until its last copy was committed."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self.copied = 0.0

    def note(self, step: RunStep) -> None:
        """Record the time of a copy."""
        if step.step == "copied":
            self.copied = self.seconds()

    def seconds(self) -> float:
        """Return the time since the start."""
        return round(time.perf_counter() - self._started, 2)


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // _MIB
