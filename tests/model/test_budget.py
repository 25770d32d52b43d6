from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.budget import (
    Budget,
    BudgetCeiling,
    CycleRule,
    GivenBudget,
    charge_budget,
    check_budget,
    effective_budget,
    is_expired,
)
from posthouse.model.errors import Refused
from tests.model.strategies import SUBJECTS

NOW = 1_700_000_000_000
BUDGETS = st.builds(
    Budget,
    hop_count=st.integers(0, 7),
    max_hops=st.integers(1, 7),
    ancestor_chain=st.lists(SUBJECTS, max_size=4).map(tuple),
    ttl=st.integers(NOW - 3, NOW + 3),
    call_budget_remaining=st.integers(0, 3),
)


def budget(
    hop_count: int = 0,
    max_hops: int = 5,
    ancestor_chain: tuple[str, ...] = (),
    ttl: int = NOW + 1,
    call_budget_remaining: int = 10,
) -> Budget:
    return Budget(
        hop_count=hop_count,
        max_hops=max_hops,
        ancestor_chain=ancestor_chain,
        ttl=ttl,
        call_budget_remaining=call_budget_remaining,
    )


def test_texts_of_the_refusals() -> None:
    assert check_budget(budget(hop_count=5), "a", NOW) == "max hops exceeded (5/5)"
    assert check_budget(budget(ancestor_chain=("a",)), "a", NOW, "chain") == "cycle detected: a already in chain"
    assert check_budget(budget(ttl=NOW - 1), "a", NOW) == "message expired (TTL)"
    assert check_budget(budget(call_budget_remaining=0), "a", NOW) == "call budget exhausted"
    assert check_budget(budget(), "a", NOW) is None


def test_checks_come_in_their_order() -> None:
    worst = budget(hop_count=5, ancestor_chain=("a",), ttl=NOW - 1, call_budget_remaining=0)
    refusals = [check_budget(worst, "a", NOW, "chain")]
    refusals.append(check_budget(budget(4, 5, ("a",), NOW - 1, 0), "a", NOW, "chain"))
    refusals.append(check_budget(budget(4, 5, ("b",), NOW - 1, 0), "a", NOW))
    refusals.append(check_budget(budget(4, 5, ("b",), NOW, 0), "a", NOW))
    assert [str(text).split()[0] for text in refusals] == ["max", "cycle", "message", "call"]


def test_a_message_lives_through_the_millisecond_of_its_ttl() -> None:
    assert check_budget(budget(ttl=NOW), "a", NOW) is None
    assert not is_expired(budget(ttl=NOW), NOW)
    assert is_expired(budget(ttl=NOW), NOW + 1)


def test_the_hops_rule_allows_a_dialogue_but_not_for_ever() -> None:
    state, reached = budget(), 0
    for endpoint in ["a", "b"] * 10:
        if check_budget(state, endpoint, NOW, "hops") is not None:
            break
        state, reached = charge_budget(state, endpoint), reached + 1
    assert reached == 5
    assert check_budget(charge_budget(budget(), "a"), "a", NOW, "chain") is not None


@given(state=BUDGETS, endpoints=st.lists(SUBJECTS, max_size=20), rule=st.sampled_from(["chain", "hops"]))
def test_a_line_of_messages_ends_within_its_hops_and_calls(
    state: Budget, endpoints: list[str], rule: CycleRule
) -> None:
    reached: list[str] = []
    now = state
    for endpoint in endpoints:
        if check_budget(now, endpoint, NOW, rule) is None:
            now = charge_budget(now, endpoint)
            reached.append(endpoint)
    assert len(reached) <= max(0, state.max_hops - state.hop_count)
    assert len(reached) <= state.call_budget_remaining
    assert now.ancestor_chain == state.ancestor_chain + tuple(reached)
    assert now.hop_count == state.hop_count + len(reached)
    assert now.call_budget_remaining == state.call_budget_remaining - len(reached)
    if rule == "chain":
        assert len(set(reached)) == len(reached)
        assert not set(reached) & set(state.ancestor_chain)


@given(inherited=st.none() | BUDGETS, given_=st.none() | BUDGETS)
def test_nobody_widens_a_budget(inherited: Budget | None, given_: Budget | None) -> None:
    ceiling = BudgetCeiling(max_hops=5, ttl_ms=2, call_budget=2)
    result = effective_budget(ceiling, NOW, inherited, given_)
    sources = [ceiling.fresh(NOW), *(b for b in (inherited, given_) if b is not None)]
    assert result.max_hops == min(b.max_hops for b in sources)
    assert result.ttl == min(b.ttl for b in sources)
    assert result.call_budget_remaining == min(b.call_budget_remaining for b in sources)
    assert result.hop_count == max(b.hop_count for b in sources)
    assert set(result.ancestor_chain) == {e for b in sources for e in b.ancestor_chain}


def test_a_partial_budget_narrows_only_what_it_names() -> None:
    result = effective_budget(BudgetCeiling(), NOW, given=GivenBudget(max_hops=2))
    assert result == budget(max_hops=2, ttl=NOW + 7 * 86_400_000, call_budget_remaining=100)


def test_a_given_hop_count_of_zero_does_not_set_a_loop_free() -> None:
    inherited = budget(hop_count=4, ancestor_chain=("a", "b"))
    result = effective_budget(BudgetCeiling(), NOW, inherited, GivenBudget(hop_count=0, ancestor_chain=()))
    assert (result.hop_count, result.ancestor_chain) == (4, ("a", "b"))


@pytest.mark.parametrize(
    "fields",
    [
        {"hop_count": -1},
        {"max_hops": 0},
        {"ttl": -1},
        {"call_budget_remaining": -1},
        {"max_hops": True},
        {"ttl": 1.0},
        {"ancestor_chain": ("a..b",)},
        {"ttl": 2**63},
    ],
)
def test_values_out_of_bounds_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Refused):
        GivenBudget(**fields)  # type: ignore[arg-type]
    with pytest.raises(Refused):
        budget(**fields)  # type: ignore[arg-type]


def test_a_ceiling_has_bounds_too() -> None:
    with pytest.raises(Refused):
        BudgetCeiling(max_hops=0)
