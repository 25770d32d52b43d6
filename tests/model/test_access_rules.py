from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.access_rules import AccessRule, AccessRules, Action, format_rules, parse_rules
from posthouse.model.errors import Refused
from posthouse.model.subjects import matches
from tests.model.strategies import SUBJECTS, patterns

#: mostly wide patterns, so that several rules speak about the same write
WIDE = st.sampled_from([">", "*", "*.>", "a.>", "a", "b"]) | patterns()
NARROW = st.sampled_from(["a", "b", "a.b", "b.c.a"])
RULES = st.lists(
    st.builds(
        AccessRule,
        from_=WIDE,
        to=WIDE,
        action=st.sampled_from(Action),
        priority=st.integers(-2, 2),
    ),
    max_size=8,
)


@given(rules=RULES, sender=NARROW | SUBJECTS, endpoint=NARROW | SUBJECTS)
def test_a_decision_agrees_with_the_rule_in_words(rules: list[AccessRule], sender: str, endpoint: str) -> None:
    speaking = [r for r in rules if matches(sender, r.from_) and matches(endpoint, r.to)]
    highest = [r for r in speaking if r.priority == max(s.priority for s in speaking)]
    expected = not any(r.action is Action.DENY for r in highest)
    assert AccessRules(rules).allows(sender, endpoint) is expected
    assert (AccessRules(rules).deciding_rule(sender, endpoint) is None) == (not speaking)


@given(RULES)
def test_a_rule_file_reads_back(rules: list[AccessRule]) -> None:
    assert parse_rules(format_rules(AccessRules(rules))).rules == tuple(rules)


def test_a_higher_priority_decides_and_deny_comes_first_at_equal_priority() -> None:
    def rule(action: Action, priority: int) -> AccessRule:
        return AccessRule(from_=">", to=">", action=action, priority=priority)

    assert AccessRules([rule(Action.DENY, 1), rule(Action.ALLOW, 2)]).allows("a", "b")
    assert not AccessRules([rule(Action.ALLOW, 1), rule(Action.DENY, 2)]).allows("a", "b")
    assert not AccessRules([rule(Action.ALLOW, 1), rule(Action.DENY, 1)]).allows("a", "b")
    assert not AccessRules([rule(Action.DENY, 1), rule(Action.ALLOW, 1)]).allows("a", "b")


def test_no_rule_allows() -> None:
    assert AccessRules().allows("a", "b")


def test_a_rule_with_the_same_patterns_is_replaced_and_removed() -> None:
    deny = AccessRule(from_="a.>", to="b", action=Action.DENY, priority=1)
    allow = AccessRule(from_="a.>", to="b", action=Action.ALLOW, priority=1)
    rules = AccessRules([deny]).with_rule(allow)
    assert rules.rules == (allow,)
    assert rules.without_rule("a.>", "b").rules == ()
    assert rules.without_rule("a.>", "c").rules == (allow,)


GOOD = {"from": "a", "to": "b", "action": "deny", "priority": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"from": "a..b"},
        {"to": ">.a"},
        {"action": "maybe"},
        {"priority": 1.5},
        {"priority": "1"},
        {"priority": True},
        {"prioirty": 1},
        {"to": None},
    ],
)
def test_one_bad_entry_refuses_the_file_and_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        parse_rules(json.dumps([GOOD, GOOD | change]).encode())
    assert caught.value.code == "access_rules_invalid"
    assert caught.value.fields["where"] == "entry 2"


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"null", b"[1]", b"[{]", b"\xff", b'[{"from":"a","from":"b","to":"b","action":"allow","priority":1}]'],
)
def test_a_file_that_is_no_list_of_rules_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        parse_rules(data)
    assert caught.value.code == "access_rules_invalid"
