"""Copying feeds into bronze, exactly once.

The version that the table has reached for (epoch, feed) is the last seq it holds; a run plans (version, head], has
workers write the files, looks again and commits files, version and Merkle root in one step. Killed anywhere before, it
leaves files that no commit names; killed after, the next run goes on behind them. One commit holds a bounded batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from posthouse.files import fsync_dir, private_dir
from posthouse.journal.committed import note_committed
from posthouse.model.clock import Clock
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.bronze import COPIES, DAY, EPOCHS_TABLE, copy_schema, epochs_schema
from posthouse.pipeline.lake.data_file import describe_file
from posthouse.pipeline.lake.delta import Commit
from posthouse.pipeline.lake.epochs import Epoch
from posthouse.pipeline.lake.merkle import BLOCK_ROWS, NOTE, Seal, root
from posthouse.pipeline.run.copy_task import Copied, CopyTask, copy_range
from posthouse.pipeline.run.progress import Step, Tell
from posthouse.pipeline.run.workers import run_in_workers
from posthouse.pipeline.source.feeds import Feed
from posthouse.pipeline.source.history import History, Segment
from posthouse.pipeline.source.store import Access, read_history

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ROWS = 32 * BLOCK_ROWS  # a second of work and a file of about 10 MB


def application_id(epoch: str, feed: str) -> str:
    """Return the name under which Delta remembers how far a feed was read."""
    return f"posthouse:{epoch}:{feed}"


class Copier:
    """Copies the feeds of one source into bronze."""

    def __init__(
        self, spark: SparkSession, lake: Lake, access: Access, clock: Clock, batch_rows: int, tell: Tell
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._access = access
        self._clock = clock
        self._batch_rows = batch_rows
        self._tell = tell

    def copy(self) -> list[Seal]:
        """Bring every copy of a feed up to the head that the source has now; return what was sealed."""
        (history,) = run_in_workers(self._spark, read_history, [self._access])
        note_epochs(self._lake, history, self._access.address.url, self._clock)
        seals: list[Seal] = []
        for table, feed in COPIES.items():
            if history.store in feed.stores:
                for segment in self._plan(history, table, feed):
                    seals.append(self._commit(table, feed, segment))
        self._note_committed(history)
        return seals

    def _note_committed(self, history: History) -> None:
        """Let the store prune what every copy has; only after all commits."""
        for each in history.lineage:
            reached = [
                self._lake.delta(table).reached(application_id(each.epoch, feed.name)) or 0
                for table, feed in COPIES.items()
                if history.store in feed.stores
            ]
            note_committed(self._lake.path, each.epoch, min(reached))

    def _plan(self, history: History, table: str, feed: Feed) -> Iterator[Segment]:
        delta = self._lake.delta(table)
        for position, each in enumerate(history.lineage):
            reached = delta.reached(application_id(each.epoch, feed.name))
            after, end = each.fork_seq if reached is None else reached, history.end_of(position)
            if after < min(history.pruned_through, end):
                gap = {"epoch": each.epoch, "after": after, "to": min(history.pruned_through, end)}
                self._tell(Step("gap", table, 0, gap))
                after = min(history.pruned_through, end)
            for low in range(after, end, self._batch_rows):
                yield Segment(each.epoch, low, min(low + self._batch_rows, end))

    def _commit(self, table: str, feed: Feed, segment: Segment) -> Seal:
        delta = self._lake.delta(table)
        application = application_id(segment.epoch, feed.name)
        before = delta.reached(application)
        copied = self._write(delta.path, feed, segment)
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
        commit = Commit(
            add=[file for each in copied for file in each.files],
            reached={application: segment.to},
            planned_after={application: before},
            notes={NOTE: msgspec.json.encode(seal).decode()},
        )
        delta.commit(commit, copy_schema(feed), (DAY,))
        self._tell(Step("copied", table, rows, {"epoch": segment.epoch, "to": segment.to, "source": self._access.url}))
        return seal

    def _write(self, path: Path, feed: Feed, segment: Segment) -> list[Copied]:
        private_dir(path)
        tasks = [
            CopyTask(self._access, feed, Segment(segment.epoch, low, min(low + TASK_ROWS, segment.to)), path)
            for low in range(segment.after, segment.to, TASK_ROWS)
        ]
        copied = run_in_workers(self._spark, copy_range, tasks)
        fsync_dir(path)
        return copied


def note_epochs(lake: Lake, history: History, url: str, clock: Clock) -> None:
    """Write down the epochs of a source that the lake has not met yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

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
    path = private_dir(delta.path) / f"{secrets.token_hex(16)}.parquet"
    pq.write_table(pa.Table.from_pylist([asdict(each) for each in found], schema=epochs_schema()), path)
    path.chmod(0o600)
    reached = {application_id(each.epoch, "epochs"): 1 for each in found}
    commit = Commit([describe_file(delta.path, path)], (), reached, dict.fromkeys(reached))
    delta.commit(commit, epochs_schema())
