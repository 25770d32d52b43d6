"""Keep the files of a lake few and its logs short: migration, retention, compaction and vacuum.

The log of a bronze table may expire only because the seals of its commits are in bronze_seals, so seals come first.
The holder of the lake lock calls these functions; each leaves the rows of every table unchanged.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from posthouse.files import private_dir, write_atomic
from posthouse.model.clock import Clock
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze_seals import SealTable
from posthouse.pipeline.lake.compaction import FULL_ROWS, compact
from posthouse.pipeline.lake.data_file import FILE_ROWS, read_groups, write_groups
from posthouse.pipeline.lake.delta import GRACE_S, vacuum
from posthouse.pipeline.lake.lake import arrow_schema, declared_names
from posthouse.pipeline.run.copy_feeds import OnStep, RunStep
from posthouse.pipeline.tables.bronze import COPIES, SEALS_TABLE, day_of

_HOUR_S = 3_600
_VACUUMED_NAME = "vacuumed"  # its content is the time of the last vacuum


class Upkeep(NamedTuple):
    """How long a lake keeps logs and replaced files, and how many small files it tolerates."""

    retention_days: int = 30
    #: For silver and gold, shorter, because a run every minute replaces the files of the day every minute.
    derived_retention_hours: int = 1
    compact_files: int = 32

    def retention_s(self, table: str) -> int:
        """Return how long the log and the replaced files of a table are kept."""
        is_bronze = table.startswith("bronze_")
        return self.retention_days * DAY_S if is_bronze else self.derived_retention_hours * _HOUR_S


DEFAULT_UPKEEP = Upkeep()


def migrate_lake(lake: Lake, on_step: OnStep) -> None:
    """Bring the bronze tables of an older posthouse to the form of this one, and make their seals agree with the logs.

    Seals that only the logs hold are stored; seals whose commit a killed run never made are deleted. An older posthouse
    kept each day in a directory, and its files do not hold the day.
    """
    seals = SealTable(lake.storage)
    for table in COPIES:
        if changed := seals.reconcile(table):
            on_step(RunStep("sealed", SEALS_TABLE, changed, {"of": table}))
        delta, schema = lake.delta(table), arrow_schema(table)
        if delta.has_partitions():
            files = [write_groups(delta.storage, schema, read_groups(delta.storage, file)) for file in delta.files()]
            delta.replace_files(files, schema)
            on_step(RunStep("migrated", table, sum(file.rows for file in files), {}))


def tidy_lake(lake: Lake, clock: Clock, upkeep: Upkeep, on_step: OnStep) -> None:
    """Merge small files, and set how long logs and replaced files are kept."""
    from posthouse.pipeline.tables.catalog import BY_NAME

    today = day_of(clock.wall_ns())
    for name in declared_names():
        delta = lake.delta(name)
        # A run that changes one row rewrites its file, so files of silver and gold are kept smaller.
        full_rows = FILE_ROWS if name in BY_NAME and BY_NAME[name].is_by_day else FULL_ROWS
        if merged := compact(delta, arrow_schema(name), today, upkeep.compact_files, full_rows):
            on_step(RunStep("compacted", name, 0, {"files": merged}))
        delta.configure(upkeep.retention_s(name))


def vacuum_lake(lake: Lake, clock: Clock, on_step: OnStep) -> None:
    """Delete files that no reader needs, at most once per grace period."""
    marker = private_dir(lake.path) / _VACUUMED_NAME
    last_ns = 0
    with suppress(FileNotFoundError, ValueError):
        last_ns = int(marker.read_text())
    if 0 <= clock.wall_ns() - last_ns < GRACE_S * SECOND_NS:
        return
    for name in lake.names():
        if removed := vacuum(lake.delta(name), clock):
            on_step(RunStep("vacuumed", name, 0, {"files": removed}))
    write_atomic(marker, str(clock.wall_ns()).encode())
