"""How the cost of a whole run grows with the history: time, memory, and what the lake takes on the disk.

Beside the time that passed stands the processor time of driver, JVM and workers, which hardly depends on what else the
machine does. Every size is a store and a lake of its own, read by one run from nothing to every table. A first small
run warms the session up and does not count.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.bench.pipeline.memory import MemoryWatch
from posthouse.bench.pipeline.processes import cpu_seconds
from posthouse.bench.pipeline.stores import make_mixed_store
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run import bring_up_to_date
from posthouse.pipeline.run.progress import Step
from posthouse.pipeline.source.store import Access

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WARM_UP_ROWS = 2_000
_MIB = 1 << 20


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
        bring_up_to_date(spark, Lake(folder / "lake"), [Access(str(store))], tell=clock.note)
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

    def note(self, step: Step) -> None:
        """Take a step's time."""
        if step.step == "copied":
            self.copied = self.seconds()

    def seconds(self) -> float:
        """Return the time since the beginning."""
        return round(time.perf_counter() - self._started, 2)


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // _MIB
