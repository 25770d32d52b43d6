"""From a real lake of a made-up history to the page, and the same lake asked what if."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.model.access_rules import AccessRules
from posthouse.model.clock import FakeClock
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.demo.bus_scene import CYCLE_RULE, RELIABILITY, RULES
from posthouse.pipeline.demo.demo_history import DemoHistory, make_history
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.report.figures import Figures
from posthouse.pipeline.report.gather_figures import gather_figures
from posthouse.pipeline.report.page import render_page
from posthouse.pipeline.run.lake_run import bring_up_to_date
from posthouse.pipeline.whatif.proposed_rules import BudgetProposal, Proposal
from posthouse.pipeline.whatif.simulation import bus_journal, simulate_history
from posthouse.sqlite.connection import open_reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")
IN_FORCE = Proposal(RELIABILITY, AccessRules(RULES), BudgetProposal(cycle_rule=CYCLE_RULE))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> DemoHistory:
    return make_history(tmp_path_factory.mktemp("demo") / "made", seed=5, agents=6, messages=800)


@pytest.fixture(scope="module")
def lake(history: DemoHistory, spark: SparkSession) -> Lake:
    lake = Lake(history.directory / "lake")
    bring_up_to_date(spark, lake, [Access(source) for source in history.sources])
    return lake


@pytest.fixture(scope="module")
def figures(lake: Lake, spark: SparkSession) -> Figures:
    return gather_figures(spark, lake, FakeClock())


def records_of(path: Path) -> list[Record]:
    db = open_reader(path)
    try:
        return read_after(db, 0, 1_000_000)
    finally:
        db.close()


def test_figures_are_what_the_journals_say(history: DemoHistory, figures: Figures) -> None:
    relay, bus = records_of(history.relay_db), records_of(history.bus_db)
    types = Counter(record.type for record in [*relay, *bus])
    by_source = Counter[str]()
    for hour in figures.hours:
        by_source[hour.source] += hour.messages
    assert by_source["relay"] == types["message.accepted"]
    assert sum(each.grants for each in figures.contention) == types["lock.acquired"] + types["lock.taken_over"]
    assert sum(each.take_overs for each in figures.contention) == types["lock.taken_over"]
    counted = sum(r.decoded_body()["count"] for r in [*relay, *bus] if r.type in ("refused", "bus.refused"))
    counted += sum("refused" in r.decoded_body() for r in bus if r.type == "bus.dead")  # those that left a letter
    assert sum(row.value for row in figures.refusals) == counted
    assert figures.cost_usd > 0 and figures.tokens > 0


def test_members_are_called_by_their_names(figures: Figures) -> None:
    names = {name for edge in figures.edges["relay"] for name in (edge.sender, edge.recipient)}
    assert names and names <= {"planner", "coder", "reviewer", "tester", "librarian", "herald"}


def test_page_of_the_lake_shows_every_card(figures: Figures) -> None:
    page = render_page(figures)
    for title in ("Traffic", "Cost per day", "Refusals", "Contention", "by relay", "on the bus", "Delivery latency"):
        assert title in page
    assert "deploy/production" in page


def test_lake_judged_by_the_rules_in_force_differs_in_nothing(lake: Lake, spark: SparkSession) -> None:
    judgement = simulate_history(bus_journal(spark, lake), IN_FORCE)
    assert judgement.accepted.count() > 100
    assert judgement.accepted.where("would IS NOT NULL").count() == 0
    assert judgement.refusals.count() > 0
    assert judgement.refusals.where("was <> would").count() == 0
