"""The live index finds what a comparison of every filter with every event finds, at a lower cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.model.event import Event
from posthouse.model.filters import Filter
from posthouse.relay import filter_index
from posthouse.relay.filter_index import FilterIndex

IDS = [character * 64 for character in "0123"]
NODES = ["ed25519:" + character * 64 for character in "abc"]
VALUES = ["x", "y", "", "z,w"]


def some(values: list[Any]) -> st.SearchStrategy[Any]:
    return st.none() | st.frozensets(st.sampled_from(values), min_size=1, max_size=3)


FILTERS = st.builds(
    Filter,
    ids=some(IDS),
    authors=some(NODES),
    kinds=some([1, 2, 20_000]),
    tags=st.dictionaries(
        st.sampled_from(["t", "p", "mesh"]), st.frozensets(st.sampled_from(VALUES), min_size=1), max_size=2
    ),
    mesh=st.none() | st.sampled_from(["main", "team"]),
    since_ns=st.none() | st.integers(0, 5),
    until_ns=st.none() | st.integers(0, 5),
)
TAGS = st.lists(st.tuples(st.sampled_from(["t", "p", "q"]), st.sampled_from(VALUES)), max_size=4)
EVENTS = st.builds(
    lambda name, pubkey, at, kind, tags, mesh: Event(
        id=name, pubkey=pubkey, created_at_ns=at, kind=kind, content="", sig="",
        tags=(*tags, ("t",), ("p", "x", "more"), *([("mesh", mesh)] if mesh else [])),
    ),
    st.sampled_from(IDS), st.sampled_from(NODES), st.integers(0, 5), st.sampled_from([1, 2, 20_000]), TAGS,
    st.sampled_from([None, "main", "team"]),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(FILTERS, min_size=1, max_size=3), max_size=12),
    st.lists(EVENTS, max_size=8),
    st.sampled_from([1, 4, 64]),
    st.data(),
)
def test_index_finds_exactly_what_comparing_all_would(
    targets: list[list[Filter]], events: list[Event], keys_max: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filter_index, "_KEYS_MAX", keys_max)
        compare(targets, events, data)


def compare(targets: list[list[Filter]], events: list[Event], data: st.DataObject) -> None:
    index: FilterIndex[int] = FilterIndex()
    for target, filters in enumerate(targets):
        index.add(filters, target)
    gone = data.draw(st.sets(st.sampled_from(range(len(targets)))) if targets else st.just(set()))
    for target in gone:
        index.remove(target)
    for event in events:
        naive = {
            target
            for target, filters in enumerate(targets)
            if target not in gone and any(each.matches(event) for each in filters)
        }
        found = index.matching(event)
        assert len(found) == len(set(found))
        assert set(found) == naive


def test_removed_filters_leave_nothing_behind() -> None:
    index: FilterIndex[int] = FilterIndex()
    for number in range(50):
        index.add([Filter(kinds=frozenset({number + 1, 1})), Filter(tags={"t": frozenset({"a", "b"})})], number)
    for number in range(50):
        index.remove(number)
    assert (len(index), index._buckets) == (0, {})


def test_five_hundred_filters_do_not_cost_five_hundred_comparisons() -> None:
    index: FilterIndex[int] = FilterIndex()
    nodes = [f"ed25519:{number:064x}" for number in range(500)]
    for number, node in enumerate(nodes):
        wanted = [
            Filter(authors=frozenset({node})),
            Filter(kinds=frozenset({1}), tags={"t": frozenset({f"topic-{number}"})}),
            Filter(kinds=frozenset({number + 100})),
        ][number % 3]
        index.add([wanted], number)
    event = Event(id=IDS[0], pubkey=nodes[300], created_at_ns=1, kind=1, tags=(("t", "topic-301"),), content="", sig="")
    assert index.matching(event) == [300, 301]
    assert index.comparisons == 2


CROWD = 10_000
PUBLISHED = Event(
    id=IDS[0],
    pubkey=NODES[0],
    created_at_ns=1_000_000,
    kind=1,
    tags=(("t", "news"), ("p", "x"), ("mesh", "team")),
    content="",
    sig="",
)
#: filters that match the event above in everything but one condition, which differs from filter to filter
NEAR_MISSES: dict[str, Callable[[int], Filter]] = {
    "author": lambda n: near(authors=frozenset({f"ed25519:{n:064x}"})),
    "author among many": lambda n: near(authors=frozenset({f"ed25519:{n * 9 + m:064x}" for m in range(9)})),
    "kind": lambda n: near(kinds=frozenset({n + 2})),
    "mesh": lambda n: near(mesh=f"mesh-{n}"),
    "first tag": lambda n: near(tags={"t": frozenset({f"topic-{n}"}), "p": frozenset({"x"})}),
    "second tag": lambda n: near(tags={"t": frozenset({"news"}), "p": frozenset({f"node-{n}"})}),
    "tag that the event lacks": lambda n: near(tags={"t": frozenset({"news"}), f"q{n}": frozenset({"x"})}),
    "id": lambda n: near(ids=frozenset({f"{n + 1:064x}"})),
    "not yet": lambda n: near(since_ns=PUBLISHED.created_at_ns + 1 + n),
    "no longer": lambda n: near(until_ns=PUBLISHED.created_at_ns - 1 - n),
    "past range": lambda n: near(since_ns=n, until_ns=PUBLISHED.created_at_ns - 1 - n),
}


def near(**conditions: Any) -> Filter:
    matching = {"authors": frozenset({NODES[0]}), "kinds": frozenset({1}), "mesh": "team"}
    return Filter(**(matching | {"tags": {"t": frozenset({"news"})}} | conditions))


@pytest.mark.parametrize("name", ["t", "p"])
def test_filters_that_share_a_tag_which_no_event_has_are_compared_once(name: str) -> None:
    index: FilterIndex[int] = FilterIndex()
    shared = {"t": frozenset({"news"}), "p": frozenset({"x"})} | {name: frozenset({"nothing"})}
    for number in range(CROWD):
        index.add([near(tags=shared, since_ns=number)], number)
    assert index.matching(PUBLISHED) == []
    compared = index.comparisons
    assert index.matching(PUBLISHED) == []
    assert index.comparisons == compared


def test_ten_thousand_near_misses_cost_an_event_a_handful_of_comparisons() -> None:
    index: FilterIndex[int] = FilterIndex()
    makers = list(NEAR_MISSES.values())
    for number in range(CROWD):
        wanted = makers[number % len(makers)](number)
        assert not wanted.matches(PUBLISHED)
        index.add([wanted], number)
    index.add([near()], CROWD)
    assert index.matching(PUBLISHED) == [CROWD]
    assert index.comparisons <= len(makers)
