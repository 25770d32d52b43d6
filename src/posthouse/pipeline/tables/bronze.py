"""The bronze tables: the records of the stores, and the proof that they are unchanged.

bronze_journal and bronze_events are append-only copies of the feeds of the same name, with the epoch that makes seq
unique and the UTC day. bronze_epochs describes each epoch, bronze_seals each commit, bronze_erasures each block
of rows from which content was erased. Workers import this module, so it must not import pyspark. If you change a
column: 1. SCHEMA_VERSION of the lake, 2. the canonical lines (posthouse.pipeline.lake.merkle), 3. its comment
(columns), 4. docs/explain/pipeline.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.model.clock import format_utc
from posthouse.pipeline.connector.feeds import EVENTS, JOURNAL, Feed

if TYPE_CHECKING:
    import pyarrow as pa


def application_id(epoch: str, feed: str) -> str:
    """Return the Delta application id under which a table stores the last seq it holds of a feed."""
    return f"posthouse:{epoch}:{feed}"


def erasures_id(epoch: str) -> str:
    """Return the Delta application id for content.erased records of a store.

    bronze_journal stores the seq of the last one that it holds, bronze_erasures of the last one that was applied.
    """
    return application_id(epoch, "erasures")


DAY = "day"
_DAY_CHARS = len("2026-01-31")
#: A restore changes it, so bronze and facts do not store it; tables of the current state do, and are then replaced.
LOST = "lost_by_restore"
EPOCHS_TABLE = "bronze_epochs"
SEALS_TABLE = "bronze_seals"
ERASURES_TABLE = "bronze_erasures"
#: Table -> the feed that it copies.
COPIES: dict[str, Feed] = {"bronze_journal": JOURNAL, "bronze_events": EVENTS}


def day_of(at_ns: int) -> str:
    """Return the UTC day of a time, as 2026-01-31."""
    return format_utc(at_ns)[:_DAY_CHARS]


def copy_schema(feed: Feed) -> pa.Schema:
    """Return the columns of the table that copies `feed`."""
    import pyarrow as pa

    return pa.schema([("epoch", pa.string()), *feed.schema(), (DAY, pa.string())])


def epochs_schema() -> pa.Schema:
    """Return the columns of bronze_epochs."""
    import pyarrow as pa

    texts = ("epoch", "parent", "store", "url")
    order = ("epoch", "parent", "fork_seq", "store", "url", "started_at_ns")
    return pa.schema([(name, pa.string() if name in texts else pa.int64()) for name in order])


def seals_schema() -> pa.Schema:
    """Return the columns of bronze_seals: the commit, and the fields of its seal."""
    import pyarrow as pa

    texts = ("bronze_table", "epoch", "feed", "root")
    order = ("bronze_table", "commit_version", "epoch", "feed", "after", "to", "rows", "root", "leaves", "version")
    types = dict.fromkeys(texts, pa.string()) | {"leaves": pa.list_(pa.string())}
    return pa.schema([(name, types.get(name, pa.int64())) for name in order])


def erasures_schema() -> pa.Schema:
    """Return the columns of bronze_erasures: those for selection, and the signed record."""
    import pyarrow as pa

    texts = ("feed", "epoch", "record", "node", "signature")
    order = ("number", "feed", "epoch", "after", "to", "rows", "record", "node", "signature")
    return pa.schema([(name, pa.string() if name in texts else pa.int64()) for name in order])


def bronze_schema(name: str) -> pa.Schema | None:
    """Return the columns of a bronze table; None for any other table."""
    if name == EPOCHS_TABLE:
        return epochs_schema()
    if name == SEALS_TABLE:
        return seals_schema()
    if name == ERASURES_TABLE:
        return erasures_schema()
    return copy_schema(COPIES[name]) if name in COPIES else None
