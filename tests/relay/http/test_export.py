"""Feeds as Arrow streams."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from posthouse.pipeline.connector.feeds import FEEDS
from tests.relay.edge import Author, Edge


async def test_feeds_are_arrow_streams_that_go_on_from_their_cursor(edge: Edge, author: Author) -> None:
    arrow = pytest.importorskip("pyarrow")
    events = [author.event(content=str(number), tags=[("t", "x")]) for number in range(5)]
    seqs = await edge.publish(*events)
    token = await edge.token(edge.admin)
    rows = []
    cursor = None
    for _ in range(10):
        path = "/v1/export/events?limit=2" + (f"&after={cursor}" if cursor else "")
        reply = await edge.get(path, token)
        assert reply.headers["content-type"] == "application/vnd.apache.arrow.stream"
        table = arrow.ipc.open_stream(reply.body).read_all()
        cursor = reply.headers["posthouse-cursor"]
        assert table.schema.field("seq").type == arrow.int64()
        assert table.schema.field("event").type == arrow.string()
        rows += table.to_pylist()
        if table.num_rows == 0:
            break
    assert [row["seq"] for row in rows] == seqs
    assert [json.loads(row["event"]) for row in rows] == events
    assert [row["recipient"] for row in rows] == [None] * 5


@pytest.mark.skipif(find_spec("pyarrow") is not None, reason="the library is installed")
async def test_export_without_the_library_says_what_to_install(edge: Edge) -> None:
    reply = await edge.get("/v1/export/journal", await edge.token(edge.admin))
    assert (reply.status, reply.code) == (501, "extra_missing")
    assert "posthouse[pipeline]" in reply.value["hint"]


async def test_an_export_carries_the_extent_of_the_journal(edge: Edge, author: Author) -> None:
    pytest.importorskip("pyarrow")
    (seq,) = await edge.publish(author.event(content="one"))
    reply = await edge.get("/v1/export/journal?limit=1", await edge.token(edge.admin))
    extent = json.loads(reply.headers["posthouse-extent"])
    assert (extent["pruned_through"], extent["fork_seq"], extent["ancestors"]) == (0, 0, [])
    assert extent["head"] >= seq
    assert len(extent["epoch"]) == 32


@pytest.mark.parametrize("feed", ["journal", "events", "deliveries", "locks"])
async def test_every_feed_has_the_columns_that_the_pipeline_expects(edge: Edge, author: Author, feed: str) -> None:
    arrow = pytest.importorskip("pyarrow")
    await edge.publish(author.event(content="one"))
    reply = await edge.get(f"/v1/export/{feed}", await edge.token(edge.admin))
    assert arrow.ipc.open_stream(reply.body).read_all().schema == FEEDS[feed].schema()
