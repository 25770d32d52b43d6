"""Reading what is proposed."""

from __future__ import annotations

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.model.reliability import Reliability
from posthouse.pipeline.whatif.proposed_rules import parse_proposal


def test_sections_that_are_not_named_have_their_defaults() -> None:
    proposal = parse_proposal(b'{"reliability": {"rateLimit": {"maxPerWindow": 7}}}', None)
    assert proposal.reliability.rate_limit.max_per_window == 7
    assert proposal.reliability.backpressure == Reliability().backpressure
    assert proposal.rules is None and proposal.budget is None


def test_budget_and_rules_are_read() -> None:
    config = b'{"budget": {"maxHops": 3, "cycleRule": "hops"}}'
    rules = b'[{"from": "a.>", "to": "b", "action": "deny", "priority": 1}]'
    proposal = parse_proposal(config, rules)
    assert proposal.budget is not None and proposal.budget.max_hops == 3 and proposal.budget.cycle_rule == "hops"
    assert proposal.rules is not None and not proposal.rules.allows("a.x", "b")


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"reliability": {"rateLimit": {"maxPerWindow": -1}}}',
        '{"budget": {"maxHops": 0}}',
        '{"budget": {"hops": 1}}',
        '{"budget": {"cycleRule": "none"}}',
    ],
)
def test_bad_proposals_are_refused_with_a_clear_code(text: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        parse_proposal(text.encode(), None)
    assert refused.value.code == "reliability_invalid"
