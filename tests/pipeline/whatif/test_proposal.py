"""Reading what is proposed."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.model.reliability import Reliability
from posthouse.pipeline.whatif.proposed_rules import read_proposal


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_sections_that_are_not_named_have_their_defaults(tmp_path: Path) -> None:
    config = write(tmp_path, "new.json", '{"reliability": {"rateLimit": {"maxPerWindow": 7}}}')
    proposal = read_proposal(config, None)
    assert proposal.reliability.rate_limit.max_per_window == 7
    assert proposal.reliability.backpressure == Reliability().backpressure
    assert proposal.rules is None and proposal.budget is None


def test_budget_and_rules_are_read(tmp_path: Path) -> None:
    config = write(tmp_path, "new.json", '{"budget": {"maxHops": 3, "cycleRule": "hops"}}')
    rules = write(tmp_path, "rules.json", '[{"from": "a.>", "to": "b", "action": "deny", "priority": 1}]')
    proposal = read_proposal(config, rules)
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
def test_bad_proposals_are_refused_with_a_clear_code(tmp_path: Path, text: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        read_proposal(write(tmp_path, "new.json", text), None)
    assert refused.value.code == "reliability_invalid"


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PosthouseError) as refused:
        read_proposal(tmp_path / "none.json", None)
    assert refused.value.code == "config_unreadable"
    assert "none.json" in str(refused.value)
