from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.model.subjects import LiteralTrie, PatternTrie, matches
from tests.model.strategies import SUBJECTS, patterns

#: what is added, and whether it is removed again
ENTRIES = st.lists(st.tuples(patterns() | SUBJECTS, st.booleans()), max_size=30)


@given(entries=ENTRIES, subject=SUBJECTS)
def test_the_pattern_trie_finds_what_a_slow_search_finds_in_order(
    entries: list[tuple[str, bool]], subject: str
) -> None:
    trie: PatternTrie[int] = PatternTrie()
    tickets = [trie.add(pattern, number) for number, (pattern, _) in enumerate(entries)]
    for ticket, (_, is_removed) in zip(tickets, entries, strict=True):
        if is_removed:
            trie.remove(ticket)
    expected = [n for n, (pattern, gone) in enumerate(entries) if not gone and matches(subject, pattern)]
    assert trie.match(subject) == expected
    assert len(trie) == sum(not gone for _, gone in entries)


@given(subjects=st.lists(st.tuples(SUBJECTS, st.booleans()), max_size=30), pattern=patterns() | SUBJECTS)
def test_the_literal_trie_finds_every_subject_a_pattern_reaches(subjects: list[tuple[str, bool]], pattern: str) -> None:
    trie: LiteralTrie[int] = LiteralTrie()
    tickets = [trie.add(subject, number) for number, (subject, _) in enumerate(subjects)]
    for ticket, (_, is_removed) in zip(tickets, subjects, strict=True):
        if is_removed:
            trie.remove(ticket)
    expected = [n for n, (subject, gone) in enumerate(subjects) if not gone and matches(subject, pattern)]
    assert trie.match(pattern) == expected


@given(paths=st.lists(patterns(), max_size=20), order=st.randoms())
def test_removing_all_entries_frees_all_nodes(paths: list[str], order: Random) -> None:
    trie: PatternTrie[str] = PatternTrie()
    tickets = [trie.add(path, path) for path in paths]
    order.shuffle(tickets)
    for ticket in tickets:
        trie.remove(ticket)
    assert trie.count_nodes() == 1
    assert list(trie.items()) == []


def test_the_same_pattern_may_be_held_twice_and_each_ticket_removes_its_own() -> None:
    trie: PatternTrie[str] = PatternTrie()
    first, second = trie.add("a.>", "one"), trie.add("a.>", "two")
    assert trie.match("a.b") == ["one", "two"]
    assert trie.remove(first) == "one"
    assert trie.match("a.b") == ["two"]
    with pytest.raises(KeyError):
        trie.remove(first)
    assert list(trie.items()) == [("a.>", "two")]
    assert trie.remove(second) == "two"


class _Counting(dict[str, object]):
    """A dictionary of children that counts how often it is asked."""

    asked = 0

    def get(self, key: str, default: object = None) -> object:
        _Counting.asked += 1
        return super().get(key, default)


@settings(deadline=None)
@given(count=st.sampled_from([10, 1_000]))
def test_the_cost_of_a_look_up_does_not_grow_with_the_subscriptions(count: int) -> None:
    trie: PatternTrie[int] = PatternTrie()
    for number in range(count):
        trie.add(f"agents.n{number}.in", number)
        trie.add(f"agents.n{number}.*", number)
    _count_children(trie)
    _Counting.asked = 0
    assert trie.match("agents.n7.in") == [7, 7]
    assert _Counting.asked <= 3 * 3 * 2


def _count_children(trie: PatternTrie[int]) -> None:
    waiting = [trie._root]
    while waiting:
        node = waiting.pop()
        waiting.extend(node.children.values())
        node.children = _Counting(node.children)  # type: ignore[assignment]
