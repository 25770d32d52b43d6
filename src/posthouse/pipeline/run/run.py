"""One run: everything the sources have, into the lake; then every table above it.

A run that fails or is killed is simply run again: what it committed stays, what it only wrote is an orphan.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posthouse.model.clock import Clock, system_clock
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.hold import holding
from posthouse.pipeline.lake.merkle import Seal
from posthouse.pipeline.lake.vacuum import vacuum
from posthouse.pipeline.run.bronze import Copier
from posthouse.pipeline.run.derive import Deriver
from posthouse.pipeline.run.progress import Step, Tell, silent
from posthouse.pipeline.source.store import Access
from posthouse.pipeline.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run has done."""

    rows: int
    seals: tuple[Seal, ...]
    versions: dict[str, int]


def bring_up_to_date(
    spark: SparkSession,
    lake: Lake,
    sources: Sequence[Access],
    *,
    clock: Clock | None = None,
    batch_rows: int = BATCH_ROWS,
    is_rebuild: bool = False,
    tell: Tell = silent,
) -> RunReport:
    """Bring the lake up to date with its sources; lake_busy while another run works on it."""
    clock = clock or system_clock()
    with holding(lake.path):
        if is_rebuild:
            _forget_derived(lake)
        _clean(lake, clock, tell)
        seals: list[Seal] = []
        for access in sources:
            seals += Copier(spark, lake, access, clock, batch_rows, tell).copy()
        Deriver(spark, lake, tell).derive()
    return RunReport(sum(seal.rows for seal in seals), tuple(seals), lake.versions())


def _forget_derived(lake: Lake) -> None:
    for table in TABLES:
        if lake.delta(table.name).path.exists():
            shutil.rmtree(lake.delta(table.name).path)


def _clean(lake: Lake, clock: Clock, tell: Tell) -> None:
    for name in lake.names():
        if removed := vacuum(lake.delta(name), clock):
            tell(Step("vacuumed", name, 0, {"files": removed}))
