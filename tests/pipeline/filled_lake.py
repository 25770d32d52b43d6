"""Lakes filled from stores without Spark: real Delta tables with the lake's own columns, a few rows per file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa

from posthouse.model.clock import format_utc
from posthouse.pipeline.epochs import Ancestor, History, lineage_of
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.data_file import write_rows
from posthouse.pipeline.lake.delta import Commit, Delta
from posthouse.pipeline.tables.bronze import COPIES, DAY, EPOCHS_TABLE, copy_schema, epochs_schema
from posthouse.sqlite.connection import open_reader

Row = dict[str, Any]
#: table and row in, what is written instead out; None: nothing
Change = Callable[[str, Row], Row | None]


def unchanged(_table: str, row: Row) -> Row | None:
    return row


def fill_lake(
    lake: Lake,
    store: Path,
    *,
    through: int | None = None,
    rows_per_file: int = 200,
    change: Change = unchanged,
) -> None:
    """Bring the bronze tables of a lake up to date with a relay's store, or up to a seq."""
    db = open_reader(store)
    try:
        history = _history(db)
        _note_epochs(lake, history, str(store))
        for table in COPIES:
            to = min(through or history.head, history.head)
            _copy(lake.delta(table), table, db, history, to, rows_per_file, change)
    finally:
        db.close()


def _history(db: apsw.Connection) -> History:
    rows = db.execute("SELECT epoch, parent_epoch, fork_seq, started_at_ns FROM epochs ORDER BY number").fetchall()
    head = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").get
    pruned = db.execute("SELECT pruned_through FROM journal_state").get
    return History("relay", lineage_of([Ancestor(*row) for row in rows]), pruned, head)  # type: ignore[arg-type]


def _note_epochs(lake: Lake, history: History, url: str) -> None:
    known = {each.epoch for each in lake.epochs()} if lake.delta(EPOCHS_TABLE).exists else set()
    rows = [
        {
            "epoch": each.epoch,
            "parent": each.parent,
            "fork_seq": each.fork_seq,
            "store": history.store,
            "url": url,
            "started_at_ns": each.started_at_ns,
        }
        for each in history.lineage
        if each.epoch not in known
    ]
    if rows:
        _write(lake.delta(EPOCHS_TABLE), pa.Table.from_pylist(rows, epochs_schema()))


def _copy(
    delta: Delta, table: str, db: apsw.Connection, history: History, head: int, rows_per_file: int, change: Change
) -> None:
    feed = COPIES[table]
    for segment in history.segments(0, head):
        application = f"{segment.epoch}/{feed.name}"
        reached = delta.app_version(application)
        for after in range(max(segment.after, reached or 0), segment.to, rows_per_file):
            to = min(after + rows_per_file, segment.to)
            text = f"SELECT {', '.join(feed.columns)} FROM {feed.view} WHERE seq > ? AND seq <= ? ORDER BY seq"
            rows = (dict(zip(feed.columns, row, strict=True)) for row in db.execute(text, (after, to)))
            found = [new for row in rows if (new := change(table, row | {"epoch": segment.epoch})) is not None]
            by_day: dict[str, list[Row]] = {}
            for row in found:
                by_day.setdefault(format_utc(row["at_ns"])[:10], []).append(row)
            for day, part in by_day.items():
                _write(delta, pa.Table.from_pylist([row | {DAY: day} for row in part], copy_schema(feed)))
            if delta.exists:
                delta.commit(Commit(app_versions={application: to}), copy_schema(feed))


def _write(delta: Delta, rows: pa.Table) -> None:
    delta.commit(Commit(write_rows(delta.storage, rows)), rows.schema)
