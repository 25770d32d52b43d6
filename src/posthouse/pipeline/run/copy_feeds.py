"""Copy feeds to bronze, exactly once.

The application version of a table for (epoch, feed) is the last seq that it holds. A run plans (version, head];
workers write the files (Arrow to Parquet, one UTC day per file, rows in seq order) and compute the Merkle leaves; the
driver commits files, version and root atomically. If a run dies before the commit, its files are orphans; if it dies
after the commit, the next run continues there. A task that runs twice writes two sets of files, and only one is
committed. One commit holds a bounded batch. Workers import this module, so it must not import pyspark or apsw.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.journal.cursor import note_committed
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.model.merkle_tree import root
from posthouse.pipeline.connector.feeds import JOURNAL, Condition, Feed
from posthouse.pipeline.connector.source_access import Access, check_planned, read_history
from posthouse.pipeline.connector.stores import FileStore
from posthouse.pipeline.epochs import Epoch, History, Segment
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze_erasures import ErasureTable, digests_of_requests, erased_rows
from posthouse.pipeline.lake.bronze_seals import SealTable
from posthouse.pipeline.lake.data_file import DataFile, describe_file, write_rows, writer_options
from posthouse.pipeline.lake.delta import Commit
from posthouse.pipeline.lake.lake import arrow_schema
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, NOTE, Seal, blocks, leaf, leaves_of
from posthouse.pipeline.lake.storage import Storage
from posthouse.pipeline.session.spark import run_in_workers
from posthouse.pipeline.tables.bronze import (
    COPIES,
    DAY,
    EPOCHS_TABLE,
    application_id,
    copy_schema,
    day_of,
    epochs_schema,
    erasures_id,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RunStep:
    """A finished step of a run, for progress output."""

    #: copied, erased, derived, unchanged, gap, purged, compacted, sealed, migrated, rebuilding or vacuumed.
    step: str
    table: str
    rows: int
    #: Further fields, which depend on the step.
    fields: dict[str, Any]

    def as_value(self) -> dict[str, Any]:
        """Return the step as one JSON object."""
        return {"step": self.step, "table": self.table, "rows": self.rows} | self.fields


OnStep = Callable[[RunStep], None]


def ignore_step(_step: RunStep) -> None:
    """Do nothing."""


_DAY_NS = DAY_S * SECOND_NS
_JOURNAL_TABLE = "bronze_journal"


@dataclass(frozen=True)
class CopyTask:
    """Copy the rows of a segment from a source to files of a table."""

    access: Access
    feed: Feed
    segment: Segment
    table: Storage


@dataclass(frozen=True)
class Copied:
    """The result of a task."""

    after: int
    rows: int
    files: tuple[DataFile, ...]
    leaves: tuple[bytes, ...]
    #: The seq of the last content.erased record; 0: there is none.
    last_erasure: int = 0


def copy_range(task: CopyTask) -> Copied:
    """Copy one range and return its files and leaves."""
    files = _DayFiles(task)
    leaves: list[bytes] = []
    rows = last_erasure = 0
    with task.access.open() as store, closing(files):
        check_planned(task.access, store.history(), task.segment)
        for after, to, table in _by_blocks(store.read(task.feed, task.segment.after, task.segment.to), task):
            leaves += leaves_of(table, after, to)
            rows += table.num_rows
            last_erasure = max(last_erasure, _last_erasure(task.feed, table))
            files.write(table)
    return Copied(task.segment.after, rows, files.described(), tuple(leaves), last_erasure)


def _last_erasure(feed: Feed, rows: pa.Table) -> int:
    import pyarrow.compute as pc

    if feed.name != JOURNAL.name:
        return 0
    return pc.max(rows.column("seq").filter(pc.equal(rows.column("type"), "content.erased"))).as_py() or 0


_IS_ERASURE = Condition("type", "=", "type = ?", ("content.erased",))


@dataclass(frozen=True)
class LeafTask:
    """Compute the Merkle leaf of a block that a source holds."""

    access: Access
    segment: Segment
    version: int


def read_leaf(task: LeafTask) -> str | None:
    """Return the leaf of a block of the journal, in hex; None if records of it were erased and no leaf can be computed.

    The record of an erasure follows the erased ones. The journal of a relay has no content to erase.
    """
    import pyarrow as pa

    empty = JOURNAL.schema().empty_table()
    with task.access.open() as store:
        rows = pa.concat_tables([empty, *store.read(JOURNAL, task.segment.after, task.segment.to)])
        erased: dict[int, bytes] = {}
        if isinstance(store, FileStore):
            later = store.read(JOURNAL, task.segment.after, store.history().head, conditions=(_IS_ERASURE,))
            erased = digests_of_requests(pa.concat_tables([empty, *later]))
    kept = {seq: erased[seq] for seq in rows.column("seq").to_pylist() if seq in erased}
    return None if kept and task.version == 1 else leaf(rows, task.version, kept).hex()


def _by_blocks(tables: Iterator[pa.Table], task: CopyTask) -> Iterator[tuple[int, int, pa.Table]]:
    """Regroup the tables of a source at block boundaries, holding at most one table and one block in memory."""
    import pyarrow as pa

    segment = task.segment
    held: list[pa.Table] = [task.feed.schema().empty_table()]
    after = segment.after
    for table in tables:
        held.append(table)
        last = table.column("seq")[-1].as_py() if table.num_rows else after
        end = segment.after + (last - segment.after) // BLOCK_ROWS * BLOCK_ROWS
        if end > after:
            whole = pa.concat_tables(held).combine_chunks()
            cut = int(whole.column("seq").to_numpy().searchsorted(end, side="right"))
            yield after, end, whole.slice(0, cut)
            held, after = [whole.slice(cut)], end
    if after < segment.to:
        yield after, segment.to, pa.concat_tables(held).combine_chunks()


class _DayFiles:
    """The open files of a task, one per day."""

    def __init__(self, task: CopyTask) -> None:
        self._task = task
        self._schema = copy_schema(task.feed)
        self._name = f"{task.segment.epoch[:8]}-{task.segment.after + 1:019d}-{secrets.token_hex(8)}"
        self._writers: dict[int, Any] = {}
        self._paths: list[str] = []

    def write(self, rows: pa.Table) -> None:
        """Append rows to the files of their days."""
        import pyarrow as pa

        days = rows.column("at_ns").to_numpy() // _DAY_NS
        cuts = [0, *(int(cut) + 1 for cut in (days[1:] != days[:-1]).nonzero()[0]), rows.num_rows]
        for low, high in pairwise(cuts):
            if low < high:
                epochs, day = (
                    pa.chunked_array([pa.repeat(pa.scalar(text), high - low)])
                    for text in (self._task.segment.epoch, day_of(int(days[low]) * _DAY_NS))
                )
                part = rows.slice(low, high - low).add_column(0, "epoch", epochs).append_column(DAY, day)
                self._writer(int(days[low])).write_table(part)

    def close(self) -> None:
        """Finish every file and make it durable."""
        for writer in self._writers.values():
            writer.close()
        self._task.table.sync(self._paths)

    def described(self) -> tuple[DataFile, ...]:
        """Return the files with their statistics."""
        return tuple(describe_file(self._task.table, path) for path in self._paths)

    def _writer(self, day: int) -> Any:
        if day not in self._writers:
            import pyarrow.parquet as pq

            table, path = self._task.table, f"{self._name}-{day_of(day * _DAY_NS)}.parquet"
            table.prepare(path)
            options, target = writer_options(self._schema), table.full_path(path)
            self._writers[day] = pq.ParquetWriter(target, self._schema, filesystem=table.filesystem(), **options)
            self._paths.append(path)
        return self._writers[day]


TASK_ROWS = 32 * BLOCK_ROWS  # a second of work and a file of about 10 MB


class Copier:
    """Copies the feeds of one source into bronze."""

    def __init__(
        self, spark: SparkSession, lake: Lake, access: Access, clock: Clock, batch_rows: int, on_step: OnStep
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._access = access
        self._clock = clock
        self._batch_rows = batch_rows
        self._on_step = on_step

    def copy(self) -> list[Seal]:
        """Copy every feed up to the current head of the source; return the seals of the commits."""
        (history,) = run_in_workers(self._spark, read_history, [self._access])
        self._refuse_older_store(history)
        note_epochs(self._lake, history, self._access.address.url, self._clock)
        seals: list[Seal] = []
        for table, feed in COPIES.items():
            if history.store in feed.stores:
                for segment in self._plan(history, table, feed):
                    seals.append(self._commit(table, feed, segment))
        self._note_committed(history)
        return seals

    def _refuse_older_store(self, history: History) -> None:
        """Raise source_went_back if the store lacks records that the lake has, or has others in their place.

        A standby that lacks records may not have received them yet: then raise source_behind. Only the journal is
        compared: its rows never change, while the content of events may expire.
        """
        feed = COPIES[_JOURNAL_TABLE]
        held = self._lake.delta(_JOURNAL_TABLE).app_version(application_id(history.epoch, feed.name))
        newest = None if held is None else SealTable(self._lake.storage).newest(_JOURNAL_TABLE, history.epoch, held)
        if newest is None:
            return
        if newest.to > history.head:
            reason = f"it ends at record {history.head}, the lake has its records up to {newest.to}"
            code = "source_behind" if history.is_standby else "source_went_back"
            raise error(code, url=self._access.url, reason=reason)
        (*_, last) = blocks(newest.after, newest.to)
        if last.after < history.pruned_through:
            return
        erased = erased_rows(ErasureTable(self._lake.storage).read(), feed.name)
        version = erased.version(newest, last.after)
        task = LeafTask(self._access, Segment(history.epoch, last.after, last.to), version)
        (found,) = run_in_workers(self._spark, read_leaf, [task])
        if found not in (None, erased.leaf(newest, last.after)):
            reason = f"its records {last.after + 1}..{last.to} differ from those in the lake"
            raise error("source_went_back", url=self._access.url, reason=reason)

    def _note_committed(self, history: History) -> None:
        """Allow the store to prune the rows that every copy holds; called after all commits."""
        for each in history.lineage:
            committed = [
                self._lake.delta(table).app_version(application_id(each.epoch, feed.name)) or 0
                for table, feed in COPIES.items()
                if history.store in feed.stores
            ]
            note_committed(self._lake.path, each.epoch, min(committed))

    def _plan(self, history: History, table: str, feed: Feed) -> Iterator[Segment]:
        delta = self._lake.delta(table)
        for position, each in enumerate(history.lineage):
            committed = delta.app_version(application_id(each.epoch, feed.name))
            after, end = each.fork_seq if committed is None else committed, history.end_of(position)
            if after < min(history.pruned_through, end):
                gap = {"epoch": each.epoch, "after": after, "to": min(history.pruned_through, end)}
                self._on_step(RunStep("gap", table, 0, gap))
                after = min(history.pruned_through, end)
            for low in range(after, end, self._batch_rows):
                yield Segment(each.epoch, low, min(low + self._batch_rows, end))

    def _commit(self, table: str, feed: Feed, segment: Segment) -> Seal:
        delta = self._lake.delta(table)
        application = application_id(segment.epoch, feed.name)
        before, version = delta.app_version(application), delta.version() + 1
        copied = self._write(delta.storage, feed, segment)
        leaves = [leaf for each in copied for leaf in each.leaves]
        rows = sum(each.rows for each in copied)
        seal = Seal(
            segment.epoch,
            feed.name,
            segment.after,
            segment.to,
            rows,
            root(leaves).hex(),
            tuple(leaf.hex() for leaf in leaves),
        )
        last_erasure = max(each.last_erasure for each in copied)
        erasures = {erasures_id(segment.epoch): last_erasure} if last_erasure else {}
        commit = Commit(
            add=[file for each in copied for file in each.files],
            app_versions={application: segment.to, **erasures},
            planned_after={application: before},
            version=version,
            notes={NOTE: msgspec.json.encode(seal).decode()},
        )
        delta.check(commit)
        SealTable(self._lake.storage).add(table, version, seal)
        delta.commit(commit, arrow_schema(table))
        self._on_step(
            RunStep(
                "copied",
                table,
                rows,
                {
                    "epoch": segment.epoch,
                    "to": segment.to,
                    "source": self._access.url,
                    "oldest_at_ns": min((file.min_values["at_ns"] for file in commit.add), default=None),
                },
            )
        )
        return seal

    def _write(self, table: Storage, feed: Feed, segment: Segment) -> list[Copied]:
        table.prepare()
        tasks = [
            CopyTask(self._access, feed, Segment(segment.epoch, low, min(low + TASK_ROWS, segment.to)), table)
            for low in range(segment.after, segment.to, TASK_ROWS)
        ]
        return run_in_workers(self._spark, copy_range, tasks)


def note_epochs(lake: Lake, history: History, url: str, clock: Clock) -> None:
    """Add the epochs of a source that are new to the lake."""
    import pyarrow as pa

    known = {each.epoch for each in lake.epochs()}
    now_ns = clock.wall_ns()
    found = [
        Epoch(each.epoch, each.parent, each.fork_seq, history.store, url, each.started_at_ns or now_ns)
        for each in history.lineage
        if each.epoch not in known
    ]
    if not found:
        return
    delta = lake.delta(EPOCHS_TABLE)
    files = write_rows(delta.storage, pa.Table.from_pylist([asdict(each) for each in found], schema=epochs_schema()))
    versions = {application_id(each.epoch, "epochs"): 1 for each in found}
    delta.commit(Commit(files, (), versions, dict.fromkeys(versions)), arrow_schema(EPOCHS_TABLE))
