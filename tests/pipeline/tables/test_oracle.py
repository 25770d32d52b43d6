"""Tables of random histories, a restore among them: the important ones equal an oracle in plain Python."""

from __future__ import annotations

from datetime import datetime

import pytest
from pyspark.sql import SparkSession

from posthouse.pipeline.tables.bronze import LOST
from posthouse.pipeline.tables.catalog import BY_NAME, TABLES
from posthouse.pipeline.tables.declaration import RefreshMode
from tests.faults.campaign import rounds
from tests.pipeline.tables import oracle
from tests.pipeline.tables.history import HOUR_NS, History, write_history
from tests.pipeline.tables.making import Made

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.faults]


@pytest.fixture(scope="module", params=range(rounds(1, 8)))
def history(request: pytest.FixtureRequest) -> History:
    return write_history(request.param)


@pytest.fixture(scope="module")
def made(spark: SparkSession, history: History) -> Made:
    return Made(spark, history)


def test_every_view_has_one_row_per_key_and_a_day(made: Made) -> None:
    for table in TABLES:
        view = made.view(table)
        keys = [tuple(row) for row in view.select(*table.keys).collect()]
        assert keys, f"the history says nothing about {table.name}"
        if table.refresh is not RefreshMode.APPEND_FACTS:
            assert len(keys) == len(set(keys)), table.name
            assert view.where("day IS NULL").isEmpty(), table.name


def test_states_of_deliveries_equal_those_of_a_replay_in_plain_python(made: Made, history: History) -> None:
    view = made.view(BY_NAME["silver_deliveries"]).where(f"source = 'relay' AND NOT {LOST}")
    found = {(row["reader"], row["message_id"]): row["state"] for row in view.collect()}
    assert found == oracle.delivery_states(history)
    assert "moved" in found.values(), "the reader of a delivery rotated its key"


def test_who_talks_to_whom_counts_a_moved_delivery_once_for_the_new_key(made: Made, history: History) -> None:
    rows = made.view(BY_NAME["gold_who_talks_to_whom"]).where("source = 'relay'").collect()
    found = {(row["day"], row["sender"], row["recipient"]): (row["deliveries"], row["delivered"]) for row in rows}
    assert found == oracle.talks(history)


def test_costs_equal_sums_in_plain_python(made: Made, history: History) -> None:
    rows = made.view(BY_NAME["gold_cost_daily"]).where("source = 'relay'").collect()
    found = {(row["day"], row["sender"], row["model"]): (row["messages"], row["cost_usd"] * 10**7) for row in rows}
    assert found == oracle.costs(history)


def test_messages_per_hour_equal_counts_in_plain_python(made: Made, history: History) -> None:
    rows = made.view(BY_NAME["gold_traffic_hourly"]).where("source = 'relay' AND messages > 0").collect()
    found = {_hour_number(row["hour"]): row["messages"] for row in rows}
    assert found == oracle.messages_per_hour(history)


def test_refusals_equal_sums_in_plain_python_dead_letters_of_the_bus_among_them(made: Made, history: History) -> None:
    rows = made.view(BY_NAME["gold_refusals_daily"]).collect()
    found = {(row["day"], row["source"], row["code"], row["key"]): (row["count"], row["minutes"]) for row in rows}
    assert found == oracle.refusals(history)
    assert {code for _day, source, code, _key in found if source == "bus"} >= {"access_denied", "backpressure"}


def test_conversations_equal_chains_followed_in_plain_python(made: Made, history: History) -> None:
    rows = made.view(BY_NAME["silver_conversations"]).where("source = 'relay'").collect()
    assert {row["conversation"]: row["messages"] for row in rows} == oracle.conversations(history)


def _hour_number(hour: str) -> int:
    return int(datetime.fromisoformat(f"{hour}:00:00+00:00").timestamp()) * 10**9 // HOUR_NS
