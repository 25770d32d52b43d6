"""The sink, replay's selection and publish on a real Spark, against a real relay: what is run twice arrives once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from posthouse.client import Client
from posthouse.client.trust.pins import Pins
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.connector.data_source import register_source
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.publish_stats import STATS_KIND, AlertThresholds, SpentAlert, publish, through_of
from posthouse.pipeline.replay_messages import INPUTS, ReplayCursor, ReplayOptions, select_messages
from tests.pipeline.filled_lake import fill_lake
from tests.pipeline.inputs import views_of
from tests.pipeline.relay import Post, post_office

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")
COLUMNS = "row_key string, to string, body string"
POSTS = 6


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    with post_office(tmp_path_factory.mktemp("post")) as running:
        asyncio.run(running.open_topic("news", "alerts"))
        yield running


@pytest.fixture(scope="module")
def lake(post: Post, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The history of two agents: one asks and floods, the other answers; a third one is silent, and has a new key."""
    asker, silent = NodeKey.generate(), NodeKey.generate()
    asyncio.run(_correspond(post, asker, silent))
    found = Lake(tmp_path_factory.mktemp("history") / "lake")
    fill_lake(found, post.relay.data_dir / "relay.db")
    return found


async def _correspond(post: Post, asker: NodeKey, silent: NodeKey) -> None:
    async with Client(post.relay.url, asker, pins=Pins(None)) as client:
        asked = [await client.send("#news", f"question {number}") for number in range(POSTS)]
        await client.send(silent.node, "are you there")
    async with Client(post.relay.url, silent, pins=Pins(None)) as client:
        await client.keys.rotate(NodeKey.generate())
    async with Client(post.relay.url, post.reader, pins=Pins(None)) as client:
        for each in asked:
            await client.send("#news", "answer", reply_to=each.id)
    assert len(await post.read(POSTS)) == POSTS


def rows(spark: SparkSession, values: list[tuple[str, str, str]]) -> DataFrame:
    return spark.createDataFrame(values, COLUMNS).repartition(2)


def write(frame: DataFrame, post: Post, run_id: str) -> None:
    frame.write.format("posthouse").options(**post.options(run_id).as_strings()).mode("append").save()


def test_written_rows_arrive_once_however_often_they_are_written(spark: SparkSession, post: Post, lake: Lake) -> None:
    register_source(spark)
    frame = rows(spark, [(f"k{number}", "#news", f"row {number}") for number in range(10)])
    for _ in range(2):
        write(frame, post, "once")
    write(frame.unionByName(frame), post, "once")
    assert sorted(asyncio.run(post.read(10))) == sorted(f"row {number}" for number in range(10))


def test_nothing_is_sent_when_one_row_cannot_be(spark: SparkSession, post: Post, lake: Lake) -> None:
    register_source(spark)
    frame = rows(spark, [("good", "#news", "never sent"), ("bad", "", "nowhere")])
    with pytest.raises(Exception, match="without `to`"):
        write(frame, post, "refused")
    assert asyncio.run(post.read(0)) == []


def test_replay_selects_by_sql_in_the_order_of_history(spark: SparkSession, lake: Lake) -> None:
    inputs = views_of(spark, lake, *INPUTS)
    start = ReplayCursor(ReplayOptions("true", "#x"))
    chosen = select_messages(inputs, "destination = 'news' AND reply_to IS NULL", start).collect()
    assert [row["body"] for row in chosen] == [f"question {number}" for number in range(POSTS)]
    third = chosen[2]
    behind = ReplayCursor(start.options, third["at_ns"], third["epoch"], third["seq"])
    rest = select_messages(inputs, "reply_to IS NULL", behind).collect()
    assert [row["body"] for row in rest] == [f"question {number}" for number in range(3, POSTS)], "sealed is left out"
    with pytest.raises(PosthouseError) as raised:
        select_messages(inputs, "no such column", start)
    with pytest.raises(PosthouseError, match="reflect is not allowed"):
        select_messages(inputs, "reflect('java.lang.System', 'getProperty', 'user.home') = 'x'", start)
    assert raised.value.code == "query_failed"


def test_published_figures_and_alerts_arrive_once(spark: SparkSession, post: Post, lake: Lake) -> None:
    inputs = views_of(spark, lake, "silver_messages", "silver_deliveries")
    alarm = AlertThresholds(flood_per_hour=POSTS, silent_s=0, attempts=5)
    options, through_ns = post.options("publish"), through_of(lake)
    spent = [SpentAlert("over_budget", "", "2026-11-15", 61)]
    done = [
        publish(
            spark, inputs, options, through_ns=through_ns, days=7, thresholds=alarm, alerts_to="#alerts", spent=spent
        )
        for _ in range(2)
    ]
    assert done[0] == done[1]
    assert (done[0].members, done[0].topics) == (3, 1)
    assert sorted(each["alert"] for each in done[0].alerts) == ["flood", "flood", "over_budget", "silent_agent"]
    bodies = [json.loads(body) for body in asyncio.run(post.read(4))]
    assert sorted(body["alert"] for body in bodies) == ["flood", "flood", "over_budget", "silent_agent"]
    figures = asyncio.run(_figures(post))
    answering = figures[f"stats/{post.reader.node}"]
    assert (answering["answers"], answering["sent"], answering["confirmed"]) == (POSTS, POSTS, POSTS)
    assert answering["answer_p50_ms"] > 0
    assert figures["stats/#news"]["messages"] == 2 * POSTS


async def _figures(post: Post) -> dict[str, Any]:
    async with post.client(post.key) as client:
        page = await client.query({"kinds": [STATS_KIND]})
    found = {str(stored.event.value("d")): json.loads(stored.event.content) for stored in page.events}
    assert len(found) == len(page.events), "a figure is there twice"
    return found
