"""Access, back-pressure, breaker and budget over a mailbox's history."""

from __future__ import annotations

import msgspec

from posthouse.model.access_rules import AccessRule, AccessRules, Action
from posthouse.model.budget import Budget
from posthouse.model.reliability import Backpressure, CircuitBreaker, DeadLetterLimits, Reliability
from posthouse.pipeline.whatif.proposed_rules import (
    FULL_OF_LETTERS,
    Attempt,
    BudgetProposal,
    Change,
    Proposal,
    simulate_mailbox,
)
from tests.pipeline.whatif.attempts import attempt, change, refused

SMALL = Proposal(Reliability(backpressure=Backpressure(max_mailbox_size=2)))
FRAGILE = Proposal(Reliability(circuit_breaker=CircuitBreaker(failure_threshold=2, cooldown_ms=10_000)))
DENY = AccessRules([AccessRule(from_="crowd.>", to="work.a", action=Action.DENY, priority=1)])


def codes(rows: list[Attempt], changes: list[Change], proposal: Proposal) -> list[str | None]:
    return [row.would for row in simulate_mailbox(rows, changes, proposal)]


def test_full_mailbox_would_refuse_until_something_ends_there() -> None:
    rows = [attempt(number) for number in (1, 2, 3, 9)]
    assert codes(rows, [], SMALL) == [None, None, "backpressure", "backpressure"]
    assert codes(rows, [change(5, "handled", "id-0001")], SMALL) == [None, None, "backpressure", None]


def test_end_of_a_message_that_would_have_been_refused_frees_no_place() -> None:
    rows = [attempt(number) for number in (1, 2, 3, 9)]
    assert codes(rows, [change(5, "handled", "id-0003")], SMALL)[-1] == "backpressure"


def test_mail_that_another_program_put_there_takes_room() -> None:
    changes = [change(1, "adopted", "x"), change(2, "adopted", "y")]
    assert codes([attempt(3)], changes, SMALL) == ["backpressure"]


def test_refusal_for_dead_letters_stays_unless_the_proposal_lifts_their_limit() -> None:
    rows = [attempt(1), refused(2, 0, "backpressure", text=FULL_OF_LETTERS)]
    assert codes(rows, [], SMALL) == [None, "backpressure"]
    lifted = Proposal(Reliability(dead_letters=DeadLetterLimits(enabled=False)))
    assert codes(rows, [], lifted) == [None, None]


def test_unregistering_empties_the_mailbox() -> None:
    rows = [attempt(1), attempt(2), attempt(5)]
    assert codes(rows, [change(4, "unregistered")], SMALL) == [None] * 3


def test_message_that_was_refused_in_life_leaves_with_the_next_that_ends() -> None:
    rows = [attempt(1), refused(2, 0, "backpressure"), attempt(3), attempt(9)]
    assert codes(rows, [change(5, "handled", "id-0001")], SMALL) == [None, None, "backpressure", None]


def test_failures_open_the_breaker_and_time_lets_a_probe_through() -> None:
    rows = [attempt(1, 1), attempt(2, 2), attempt(6, 5), attempt(7, 20), attempt(8, 20)]
    changes = [change(3, "failed", "id-0001", 3), change(4, "failed", "id-0002", 4)]
    assert codes(rows, changes, FRAGILE) == [None, None, "circuit_open", None, "circuit_open"]


def test_new_server_or_a_reset_or_another_boot_closes_the_breaker() -> None:
    failures = [change(3, "failed", "id-0001", 3), change(4, "failed", "id-0002", 4)]
    rows = [attempt(1, 1), attempt(2, 2), attempt(6, 5)]
    for closing in ("served", "reset", "booted"):
        assert codes(rows, [*failures, change(5, closing)], FRAGILE)[-1] is None


def test_stored_write_counts_as_success_only_where_nobody_serves() -> None:
    rows = [attempt(2, 1), attempt(4, 2), attempt(6, 3), attempt(8, 4)]
    first, second = change(3, "failed", "id-0002", 1), change(7, "failed", "id-0006", 3)
    assert (
        codes(rows, [change(1, "served"), first, change(5, "closed", "id-0004"), second], FRAGILE)[-1] == "circuit_open"
    )
    assert codes(rows, [first, change(5, "closed", "id-0004"), second], FRAGILE)[-1] is None


def test_access_comes_before_the_full_mailbox() -> None:
    rows = [attempt(number) for number in (1, 2, 3)]
    proposal = Proposal(SMALL.reliability, DENY)
    decided = list(simulate_mailbox(rows, [], proposal))
    assert {row.would for row in decided} == {"access_denied"}
    assert decided[0].text == "access denied: the rule from crowd.> to work.a keeps crowd.one from work.a"


def test_budget_is_judged_as_it_was_before_the_endpoint_was_charged() -> None:
    budget = Budget(hop_count=2, max_hops=5, ancestor_chain=("work.b", "work.c"), ttl=9_000, call_budget_remaining=3)
    row = attempt(1, budget=msgspec.json.encode(budget).decode())
    for given, expected in (
        (BudgetProposal(), None),
        (BudgetProposal(max_hops=2), "max hops exceeded (2/2)"),
        (BudgetProposal(call_budget=0), "call budget exhausted"),
    ):
        (decided,) = simulate_mailbox([row], [], Proposal(Reliability(), None, given))
        assert (decided.text if decided.would else None) == expected


def test_no_proposed_budget_refuses_a_return() -> None:
    spent = Budget(hop_count=5, max_hops=5, ancestor_chain=("work.a",), ttl=1, call_budget_remaining=0)
    row = attempt(1, budget=msgspec.json.encode(spent).decode(), is_return=True)
    for rule in ("hops", "chain"):
        (decided,) = simulate_mailbox([row], [], Proposal(Reliability(), None, BudgetProposal(cycle_rule=rule)))
        assert decided.would is None


def test_what_was_refused_stays_refused_where_nothing_is_proposed() -> None:
    letters = [
        attempt(1, was="access_denied", was_times=1, kind="letter"),
        attempt(2, was="budget_exceeded", was_times=1, kind="letter"),
    ]
    assert codes(letters, [], Proposal(Reliability())) == ["access_denied", "budget_exceeded"]
