"""bronze_journal, bronze_events, bronze_epochs: what the stores say, unchanged, with the epoch that makes seq unique.

bronze_journal and bronze_events are append-only copies of the feeds of the same name, in files by UTC day.
bronze_epochs tells what each epoch is. Workers import this module: no pyspark here.
If you change a column: 1. SCHEMA_VERSION of the lake, 2. the canonical lines (posthouse.pipeline.lake.merkle),
3. docs/explain/pipeline.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.pipeline.connector.feeds import EVENTS, JOURNAL, Feed

if TYPE_CHECKING:
    import pyarrow as pa


def application_id(epoch: str, feed: str) -> str:
    """Return the name under which Delta remembers how far a feed was read."""
    return f"posthouse:{epoch}:{feed}"


DAY = "day"
EPOCHS_TABLE = "bronze_epochs"
#: table -> the feed it is a copy of
COPIES: dict[str, Feed] = {"bronze_journal": JOURNAL, "bronze_events": EVENTS}


def copy_schema(feed: Feed) -> pa.Schema:
    """Return the columns of the table that is a copy of `feed`."""
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
