"""Over real histories of real buses: the rules that were in force agree with what happened; others do not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.journal.digest import Record
from posthouse.journal.read import read_after
from posthouse.model.access_rules import AccessRule, AccessRules, Action
from posthouse.model.reliability import Backpressure, CircuitBreaker, DeadLetterLimits, RateLimit, Reliability
from posthouse.pipeline.whatif.proposed_rules import BudgetProposal, Proposal
from posthouse.pipeline.whatif.simulation import Simulation, simulate_history
from posthouse.sqlite.connection import open_reader
from tests.pipeline.whatif.random_bus import RELIABILITY, RULES, RandomBus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

SEEDS = (1, 2, 3)
SCHEMA = "store string, seq long, at_ns long, type string, mesh string, actor string, ref string, body string"
IN_FORCE = Proposal(RELIABILITY, AccessRules(RULES), BudgetProposal(cycle_rule="hops"))
REASONS = {"access_denied", "rate_limited", "backpressure", "circuit_open", "budget_exceeded"}


@dataclass
class Lived:
    """Histories, and the reasons for which their publishers were refused."""

    journal: DataFrame
    records: list[Record]
    refused: set[str]


@pytest.fixture(scope="module")
def lived(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    rows: list[tuple[object, ...]] = []
    everything: list[Record] = []
    refused: set[str] = set()
    for seed in SEEDS:
        directory = tmp_path_factory.mktemp("bus")
        bus = RandomBus(directory, seed)
        asyncio.run(bus.play(rounds=3, steps=60))
        refused |= bus.refused
        found = _records(directory / "bus.db")
        everything += found
        rows += [(f"store-{seed}", *record) for record in found]
    journal = spark.createDataFrame(rows, SCHEMA).cache()
    yield Lived(journal, everything, refused)
    journal.unpersist()


def _records(path: Path) -> list[Record]:
    db = open_reader(path)
    try:
        return read_after(db, 0, 1_000_000)
    finally:
        db.close()


def simulate(lived: Lived, **changed: Any) -> Simulation:
    """Simulate changed rules; what is asked of the result is computed once."""
    simulation = simulate_history(lived.journal, replace(IN_FORCE, **changed))
    return replace(simulation, attempts=simulation.attempts.cache())


def reliability(**sections: object) -> Reliability:
    return msgspec.structs.replace(RELIABILITY, **sections)


def test_rules_in_force_agree_with_the_live_bus_row_by_row_and_sum_by_sum(lived: Lived) -> None:
    assert lived.refused == REASONS, "the histories miss a kind of refusal"
    assert any("by_dead_letters" in record.body for record in lived.records), "no endpoint was full of dead letters"
    simulation = simulate(lived)
    accepted = simulation.accepted.collect()
    published = sum(record.type == "bus.published" and "reserved" in record.body for record in lived.records)
    assert len(accepted) == published > 150
    assert [row for row in accepted if row["would"] is not None] == []
    returns = [body for record in lived.records if "inReplyTo" in (body := record.decoded_body()).get("envelope", {})]
    assert any(body["envelope"]["budget"]["callBudgetRemaining"] == 0 for body in returns), "no spent return"
    refusals = simulation.refusals.collect()
    assert [row for row in refusals if row["was"] != row["would"]] == []
    assert {row["code"] for row in refusals} == REASONS
    assert sum(row["was"] for row in refusals) == _refused_in_life(lived)


def _refused_in_life(lived: Lived) -> int:
    total = 0
    for record in lived.records:
        body = record.decoded_body()
        if record.type == "bus.refused":
            total += body["count"]
        elif record.type == "bus.dead" and "refused" in body:
            total += 1
    return total


def test_narrower_mailbox_would_have_refused_messages_that_were_accepted(lived: Lived) -> None:
    simulation = simulate(lived, reliability=reliability(backpressure=Backpressure(max_mailbox_size=1)))
    codes = {row["would"] for row in simulation.accepted.where("would IS NOT NULL").collect()}
    assert codes == {"backpressure"}
    totals = simulation.refusals.groupBy("code").agg(f.sum("was").alias("was"), f.sum("would").alias("would")).collect()
    (pressure,) = [row for row in totals if row["code"] == "backpressure"]
    assert pressure["would"] > pressure["was"]


def test_without_limits_nothing_but_access_and_budget_would_have_refused(lived: Lived) -> None:
    loose = Reliability(
        rate_limit=RateLimit(enabled=False),
        circuit_breaker=CircuitBreaker(enabled=False),
        backpressure=Backpressure(enabled=False),
        dead_letters=DeadLetterLimits(enabled=False),
    )
    simulation = simulate(lived, reliability=loose)
    would = {row["code"] for row in simulation.refusals.where("would > 0").collect()}
    assert would == {"access_denied", "budget_exceeded"}
    assert simulation.accepted.where("would IS NOT NULL").count() == 0


def test_new_access_rule_would_have_refused_exactly_the_messages_it_names(lived: Lived) -> None:
    rules = AccessRules([*RULES, AccessRule(from_="crowd.quiet", to="work.c", action=Action.DENY, priority=9)])
    refused = simulate(lived, rules=rules).accepted.where("would IS NOT NULL").collect()
    assert refused
    assert {(row["sender"], row["subject"], row["would"]) for row in refused} == {
        ("crowd.quiet", "work.c", "access_denied")
    }
    assert all("crowd.quiet" in row["text"] for row in refused)


def test_questions_that_a_proposal_leaves_open_stay_as_they_were_decided(lived: Lived) -> None:
    simulation = simulate(lived, rules=None, budget=None)
    assert simulation.accepted.where("would IS NOT NULL").count() == 0
    assert simulation.refusals.where("was <> would").count() == 0
