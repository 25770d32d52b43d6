"""From a real lake of a made-up history to the page, and the same lake asked what if."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.model.access_rules import AccessRules
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.audit.derived import check_derived
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.demo.bus_scene import CYCLE_RULE, RELIABILITY, RULES
from posthouse.pipeline.demo.demo_history import DemoHistory, make_history
from posthouse.pipeline.export_conversations import (
    FORMATS,
    RedactionRules,
    export_conversations,
    manifest_path,
    parse_manifest,
)
from posthouse.pipeline.gold_reader import GoldReader, Selection
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.report.figures import Figures
from posthouse.pipeline.report.gather_figures import gather_figures
from posthouse.pipeline.report.page import render_page
from posthouse.pipeline.run.lake_run import bring_up_to_date
from posthouse.pipeline.whatif.proposed_rules import BudgetProposal, Proposal
from posthouse.pipeline.whatif.simulation import Simulation, bus_journal, simulate_history
from posthouse.sqlite.connection import open_reader
from tests.pipeline.audit.forging import rewrite

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
def figures(lake: Lake) -> Figures:
    return gather_figures(lake, FakeClock())


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
    assert figures.now.cost_usd > 0 and figures.tokens > 0
    assert sum(agent.sent for agent in figures.agents) == figures.now.messages
    assert sum(agent.received for agent in figures.agents) == figures.now.deliveries
    assert sum(agent.failed for agent in figures.agents) == figures.now.failed > 0
    assert sum(agent.refused for agent in figures.agents) == figures.now.refused
    waited = [
        r.decoded_body()["wait_ms"] for r in relay if r.type.startswith("lock.") and "wait_ms" in r.decoded_body()
    ]
    assert sum(agent.lock_waits for agent in figures.agents) == len(waited)
    assert figures.now.lock_wait_ms == sum(waited)


def test_an_agent_has_one_name_on_bus_and_relay(figures: Figures) -> None:
    cast = {"planner", "coder", "reviewer", "tester", "librarian", "herald"}
    for source in ("relay", "bus"):
        assert {edge.sender for edge in figures.edges[source]} - {"visitors.guest"} <= cast
    assert {agent.agent for agent in figures.agents} >= cast
    assert len({agent.agent for agent in figures.agents}) == len(figures.agents)


def test_slowest_answers_lead_to_the_trace_of_the_question(figures: Figures) -> None:
    assert figures.slow_answers
    times = [answer.answer_ms for answer in figures.slow_answers]
    assert times == sorted(times, reverse=True) and times[0] > 0
    first = figures.slow_answers[0]
    trace = next(each for each in figures.traces if each.message_id == first.message_id)
    assert trace.steps[0].what in ("message.accepted", "bus.published")


def test_selection_by_agent_and_days_adds_up_to_the_whole(lake: Lake, figures: Figures) -> None:
    by_agent = [gather_figures(lake, FakeClock(), None, Selection(agent=each.agent)) for each in figures.agents]
    assert sum(each.now.messages for each in by_agent) == figures.now.messages
    assert sum(each.now.cost_usd for each in by_agent) == pytest.approx(figures.now.cost_usd)
    days = sorted({row["day"] for row in GoldReader(lake, Selection()).traffic()})
    early = gather_figures(lake, FakeClock(), None, Selection(last_day=days[2]))
    late = gather_figures(lake, FakeClock(), None, Selection(first_day=days[3]))
    assert early.now.messages + late.now.messages == figures.now.messages
    assert late.before is not None and 0 < late.before.messages <= early.now.messages
    mesh = gather_figures(lake, FakeClock(), None, Selection(mesh="main"))
    assert {hour.source for hour in mesh.hours} == {"relay"}


def test_unknown_agent_is_refused_with_the_nearest_names(lake: Lake) -> None:
    with pytest.raises(PosthouseError) as refused:
        GoldReader(lake, Selection(agent="plannr"))
    assert refused.value.code == "usage" and "planner" in refused.value.hint


def test_page_of_the_lake_shows_every_card(figures: Figures) -> None:
    page = render_page(figures)
    for title in ("Traffic", "Cost per day", "Refusals", "Contention", "by relay", "on the bus", "Agents"):
        assert title in page
    assert "deploy/production" in page


def test_lake_judged_by_the_rules_in_force_differs_in_nothing(lake: Lake, spark: SparkSession) -> None:
    judgement = Simulation(simulate_history(bus_journal(spark, lake), IN_FORCE).attempts.cache())
    assert judgement.accepted.count() > 100
    assert judgement.accepted.where("would IS NOT NULL").count() == 0
    assert judgement.refusals.count() > 0
    assert judgement.refusals.where("was <> would").count() == 0


def test_changed_row_of_silver_or_gold_is_found_by_computing_it_again(
    lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    shutil.copytree(lake.path, tmp_path / "lake")
    planted = Lake(tmp_path / "lake")
    rewrite(planted, "silver_deliveries", lambda row: row.update(sender="somebody else"))
    rewrite(planted, "gold_cost_daily", lambda row: row.update(messages=int(str(row["messages"])) + 1))
    findings, tables = check_derived(spark, planted)
    assert tables > 10
    assert {finding.code for finding in findings} == {"derived_differs"}
    assert Counter(finding.detail.partition(":")[0] for finding in findings) == {
        "silver_deliveries": 2,  # the row that is there, and the one that should be
        "gold_cost_daily": 2,
    }
    assert any("sender=somebody else" in finding.detail for finding in findings)


def test_tables_that_a_killed_run_left_behind_are_not_taken_for_changed_ones(
    history: DemoHistory, lake: Lake, spark: SparkSession, tmp_path: Path
) -> None:
    shutil.copytree(lake.path, tmp_path / "lake")
    behind = Lake(tmp_path / "lake")
    shutil.rmtree(tmp_path / "lake" / "gold_cost_daily")
    with pytest.raises(PosthouseError) as refused:
        check_derived(spark, behind)
    assert refused.value.code == "lake_outdated" and "gold_cost_daily" in str(refused.value)


def test_fixed_questions_are_answered_without_spark(lake: Lake, figures: Figures) -> None:
    """In a process of its own, which afterwards has not even imported pyspark."""
    script = (
        "import sys\nfrom posthouse.cli.main import main\nlake, *questions = sys.argv[1:]\n"
        "for words in questions:\n"
        "    try:\n        main(['pipeline', 'show', *words.split(), '--lake', lake, '--json'])\n"
        "    except SystemExit as ended:\n        assert not ended.code\n"
        "    print()\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script, str(lake.path), "cost --by agent --by day", "traffic", "health"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    answers = [[json.loads(line) for line in part.splitlines()] for part in done.stdout.rstrip().split("\n\n")]
    cost, traffic, health = answers
    assert set(cost[0]) >= {"agent", "day", "cost_usd", "input_tokens", "output_tokens"}
    assert sum(row["cost_usd"] for row in cost) == pytest.approx(figures.now.cost_usd)
    assert set(traffic[0]) >= {"day", "source", "messages", "delivered", "failed"}
    assert sum(row["messages"] for row in traffic) == figures.now.messages
    assert set(health[0]) >= {"agent", "waiting", "failed", "p50_ms", "loops_stopped", "lock_waits"}


@pytest.mark.parametrize("kind", FORMATS)
def test_export_of_the_same_positions_has_the_same_bytes(lake: Lake, tmp_path: Path, kind: str) -> None:
    first, again, earlier = (tmp_path / f"{name}.{kind}" for name in ("first", "again", "earlier"))
    made = export_conversations(lake, first, kind, RedactionRules())
    manifest = manifest_path(first)
    kept = parse_manifest(manifest.read_bytes(), manifest.name)
    assert export_conversations(lake, again, kind, kept.rules, kept.positions).sha256 == made.sha256
    assert again.read_bytes() == first.read_bytes()
    assert made.sealed > 0 and b"is_sealed" in first.read_bytes()
    half = {epoch: seq // 2 for epoch, seq in kept.positions.items()}
    assert 0 < export_conversations(lake, earlier, kind, kept.rules, half).messages < made.messages
    sent = lake.delta("silver_messages").to_arrow(["source", "message_id"])
    assert made.messages == len({(row["source"], row["message_id"]) for row in sent.to_pylist()})
