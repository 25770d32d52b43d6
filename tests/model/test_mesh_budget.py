from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.budget import (
    MeshBudget,
    charge_mesh_budget,
    check_mesh_budget,
    decode_mesh_budget,
    effective_mesh_budget,
    encode_mesh_budget,
    first_mesh_budget,
    to_bus_budget,
    to_mesh_budget,
)
from posthouse.model.errors import Refused

NOW = 1_700_000_000_000
BUDGETS = st.builds(
    MeshBudget,
    hop_count=st.integers(0, 60),
    max_hops=st.integers(1, 60),
    call_budget_remaining=st.integers(0, 120),
    ttl=st.integers(NOW - 2, NOW + 2),
    is_return=st.booleans(),
)


def test_a_message_without_a_budget_gets_20_hops_100_calls_and_seven_days() -> None:
    budget = effective_mesh_budget(NOW)
    assert json.loads(encode_mesh_budget(budget)) == {
        "hop_count": 0,
        "max_hops": 20,
        "call_budget_remaining": 100,
        "ttl": NOW + 7 * 86_400_000,
    }


@given(BUDGETS)
def test_a_budget_travels_in_its_tag_and_over_the_bridge(budget: MeshBudget) -> None:
    assert decode_mesh_budget(encode_mesh_budget(budget)) == budget
    assert to_mesh_budget(to_bus_budget(budget), is_return=budget.is_return) == budget
    assert to_bus_budget(budget).ancestor_chain == ()


@given(inherited=BUDGETS, given_=BUDGETS)
def test_nobody_widens_it(inherited: MeshBudget, given_: MeshBudget) -> None:
    result = effective_mesh_budget(NOW, inherited, given_)
    assert result.max_hops == min(20, inherited.max_hops, given_.max_hops)
    assert result.call_budget_remaining == min(100, inherited.call_budget_remaining, given_.call_budget_remaining)
    assert result.ttl == min(inherited.ttl, given_.ttl)
    assert result.hop_count == max(inherited.hop_count, given_.hop_count)


def test_a_dialogue_across_the_mesh_ends_by_hops_alone() -> None:
    budget, hops = effective_mesh_budget(NOW), 0
    while check_mesh_budget(budget, NOW) is None:
        budget, hops = charge_mesh_budget(budget), hops + 1
    assert hops == 20
    assert check_mesh_budget(budget, NOW) == "max hops exceeded (20/20)"


def test_a_return_across_the_mesh_is_neither_refused_nor_charged() -> None:
    spent = MeshBudget(hop_count=20, max_hops=20, call_budget_remaining=0, ttl=NOW - 1)
    returned = effective_mesh_budget(NOW, spent, is_return=True)
    assert returned.is_return
    assert returned.ttl == NOW + 7 * 86_400_000
    assert check_mesh_budget(returned, NOW) is None
    assert charge_mesh_budget(returned) == returned
    assert check_mesh_budget(effective_mesh_budget(NOW, returned), NOW) == "max hops exceeded (20/20)"


def test_the_tag_says_that_a_message_is_a_return_only_if_it_is_one() -> None:
    plain = MeshBudget(hop_count=1, max_hops=2, call_budget_remaining=3, ttl=4)
    assert "is_return" not in json.loads(encode_mesh_budget(plain))
    returned = MeshBudget(hop_count=1, max_hops=2, call_budget_remaining=3, ttl=4, is_return=True)
    assert json.loads(encode_mesh_budget(returned))["is_return"] is True
    assert decode_mesh_budget(encode_mesh_budget(returned)) == returned


def test_a_message_without_a_budget_has_used_one_hop_when_it_is_answered() -> None:
    first = first_mesh_budget(NOW)
    assert (first.hop_count, first.call_budget_remaining) == (1, 99)


def test_refusals_have_the_texts_of_the_bus() -> None:
    assert (
        check_mesh_budget(MeshBudget(hop_count=0, max_hops=1, call_budget_remaining=1, ttl=NOW - 1), NOW)
        == "message expired (TTL)"
    )
    assert (
        check_mesh_budget(MeshBudget(hop_count=0, max_hops=1, call_budget_remaining=0, ttl=NOW), NOW)
        == "call budget exhausted"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"hop_count":0,"max_hops":1,"call_budget_remaining":1}',
        '{"hop_count":0,"max_hops":0,"call_budget_remaining":1,"ttl":1}',
        '{"hop_count":0.0,"max_hops":1,"call_budget_remaining":1,"ttl":1}',
        '{"hop_count":true,"max_hops":1,"call_budget_remaining":1,"ttl":1}',
        '{"hop_count":9,"hop_count":0,"max_hops":1,"call_budget_remaining":1,"ttl":1}',
        '{"hop_count":0,"max_hops":1,"call_budget_remaining":1,"ttl":1,"extra":1}',
        '{"hop_count":0,"max_hops":1,"call_budget_remaining":1,"ttl":1,"is_return":1}',
    ],
)
def test_a_malformed_budget_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        decode_mesh_budget(text)
