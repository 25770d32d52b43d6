"""Every table, kept up to date batch by batch, equals the table made at once; the important ones equal an oracle."""

from __future__ import annotations

import os
import random
from datetime import datetime

import pytest
from pyspark.sql import SparkSession

from posthouse.pipeline.tables import BY_NAME, LOST, TABLES, Upkeep
from tests.pipeline.tables import oracle
from tests.pipeline.tables.folding import Folded, cut
from tests.pipeline.tables.history import HOUR_NS, History, write_history

pytestmark = pytest.mark.xdist_group("spark")
_SEEDS = range(int(os.environ.get("POSTHOUSE_TEST_HISTORIES", "1")))


@pytest.fixture(scope="module", params=_SEEDS)
def history(request: pytest.FixtureRequest) -> History:
    return write_history(request.param)


@pytest.fixture(scope="module")
def rebuilt(spark: SparkSession, history: History) -> Folded:
    tables = Folded(spark)
    tables.take(history)
    return tables


@pytest.fixture(scope="module")
def incremental(spark: SparkSession, history: History) -> Folded:
    tables = Folded(spark)
    chooser = random.Random(len(history.journal))
    for batch in cut(history, chooser.sample(range(1, len(history.journal)), 2)):
        tables.take(batch)
    return tables


def test_every_table_kept_up_to_date_in_batches_equals_the_one_made_at_once(
    rebuilt: Folded, incremental: Folded
) -> None:
    for table in TABLES:
        assert rebuilt.rows(table), f"{table.name} has no rows: the history says nothing about it"
        assert incremental.rows(table) == rebuilt.rows(table), table.name


def test_every_view_has_one_row_per_key_and_a_day(rebuilt: Folded) -> None:
    for table in TABLES:
        view = rebuilt.view(table)
        keys = [tuple(row) for row in view.select(*table.keys).collect()]
        assert len(keys) == len(set(keys)), table.name
        if table.upkeep is Upkeep.FACTS:
            assert view.where("day IS NULL").isEmpty(), table.name


def test_states_of_deliveries_equal_those_of_a_replay_in_plain_python(rebuilt: Folded, history: History) -> None:
    view = rebuilt.view(BY_NAME["silver_deliveries"]).where(f"source = 'relay' AND NOT {LOST}")
    found = {(row["reader"], row["message_id"]): row["state"] for row in view.collect()}
    assert found == oracle.delivery_states(history)


def test_costs_equal_sums_in_plain_python(rebuilt: Folded, history: History) -> None:
    rows = rebuilt.view(BY_NAME["gold_cost_daily"]).where("source = 'relay'").collect()
    found = {(row["day"], row["sender"], row["model"]): (row["messages"], row["cost_usd"] * 10**7) for row in rows}
    assert found == oracle.costs(history)


def test_messages_per_hour_equal_counts_in_plain_python(rebuilt: Folded, history: History) -> None:
    rows = rebuilt.view(BY_NAME["gold_traffic_hourly"]).where("source = 'relay' AND messages > 0").collect()
    found = {_hour_number(row["hour"]): row["messages"] for row in rows}
    assert found == oracle.messages_per_hour(history)


def test_conversations_equal_chains_followed_in_plain_python(rebuilt: Folded, history: History) -> None:
    rows = rebuilt.view(BY_NAME["silver_conversations"]).where("source = 'relay'").collect()
    assert {row["conversation"]: row["messages"] for row in rows} == oracle.conversations(history)


def _hour_number(hour: str) -> int:
    return int(datetime.fromisoformat(f"{hour}:00:00+00:00").timestamp()) * 10**9 // HOUR_NS
