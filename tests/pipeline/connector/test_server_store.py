"""A relay's store in PostgreSQL as a source: the same rows as from the file that was moved there."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.connector.data_source import ReadPlan
from posthouse.pipeline.connector.feeds import Condition
from posthouse.pipeline.connector.source_access import parse_source
from posthouse.pipeline.demo.cast import make_cast
from posthouse.pipeline.demo.demo_history import START_NS
from posthouse.pipeline.demo.relay_scene import play_relay
from posthouse.relay.ops.move_store import move_to_server


def rows(url: str, feed: str, *conditions: Condition) -> pa.Table:
    """Return the rows of a feed as Spark's tasks read them, of ranges of 50 seqs."""
    plan = ReadPlan.of({"url": url, "feed": feed, "partitionRows": "50"})
    history = plan.history()
    parts = plan.partitions(history, 0, history.head)
    assert len(parts) == -(-history.head // 50)
    return pa.Table.from_batches([batch for part in parts for batch in plan.read(part.segment, conditions)])


def test_every_feed_of_a_moved_store_has_the_same_rows(tmp_path: Path, database: str) -> None:
    asyncio.run(play_relay(tmp_path / "relay", FakeClock(wall_ns=START_NS), make_cast(1, 4), 1, 20, 1))
    moved, kept = tmp_path / "relay" / "relay.db", tmp_path / "kept.db"
    shutil.copy(moved, kept)
    move_to_server(moved, database)
    for feed in ("journal", "events", "deliveries", "locks"):
        there = rows(database, feed)
        assert there.num_rows and there.equals(rows(str(kept), feed)), feed
    only = Condition("type", "in", "type IN (?, ?)", ("lock.acquired", "lock.released"))
    assert 0 < rows(database, "journal", only).num_rows < rows(database, "locks").num_rows
    assert rows(database, "journal", only).equals(rows(str(kept), "journal", only))


def test_password_in_the_address_of_a_database_is_refused_because_the_lake_keeps_addresses() -> None:
    for url in ("postgresql://relay:secret@db.example/posthouse", "postgresql://db.example/p?password=secret"):
        with pytest.raises(PosthouseError) as refused:
            parse_source(url)
        assert (refused.value.code, "secret" in str(refused.value)) == ("source_invalid", False)


def test_database_without_a_store_is_refused(database: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        ReadPlan.of({"url": database, "feed": "journal"}).history()
    assert refused.value.code == "source_invalid"
