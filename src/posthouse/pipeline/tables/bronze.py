"""bronze_journal, bronze_events, bronze_epochs: unchanged copies of the stores, with the epoch that makes seq unique.

bronze_journal and bronze_events are append-only copies of the feeds of the same name, partitioned by UTC day.
bronze_epochs describes each epoch. Workers import this module, so it must not import pyspark.
If you change a column: 1. SCHEMA_VERSION of the lake, 2. the canonical lines (posthouse.pipeline.lake.merkle),
3. docs/explain/pipeline.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.pipeline.connector.feeds import EVENTS, JOURNAL, Feed

if TYPE_CHECKING:
    import pyarrow as pa


def application_id(epoch: str, feed: str) -> str:
    """Return the Delta application id under which a table stores the last seq it holds of a feed."""
    return f"posthouse:{epoch}:{feed}"


DAY = "day"
#: Partition column of tables of facts: a hash of the key.
BUCKET = "bucket"
#: The lake adds this column to every view whose rows have epoch and seq. It is never stored: a later restore sets it.
LOST = "lost_by_restore"
EPOCHS_TABLE = "bronze_epochs"
#: Table -> the feed that it copies.
COPIES: dict[str, Feed] = {"bronze_journal": JOURNAL, "bronze_events": EVENTS}


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


def bronze_schema(name: str) -> pa.Schema | None:
    """Return the columns of a bronze table; None for any other table."""
    if name == EPOCHS_TABLE:
        return epochs_schema()
    return copy_schema(COPIES[name]) if name in COPIES else None
