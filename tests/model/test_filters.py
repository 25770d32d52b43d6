from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import Refused
from posthouse.model.event import Event
from posthouse.model.filters import Filter, filter_from_json, filter_from_query
from tests.model.strategies import NODES, make_event

EVENTS = st.builds(
    make_event,
    pubkey=NODES,
    created_at_ns=st.integers(0, 4),
    kind=st.integers(1, 4),
    tags=st.lists(
        st.tuples(st.sampled_from(["t", "p"]), st.sampled_from(["a", "b"]))
        | st.just(("t",))
        | st.just(("x", "a", "b")),
        max_size=3,
    ).map(tuple),
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    conditions = {
        "authors": st.lists(NODES, min_size=1, max_size=3),
        "kinds": st.lists(st.integers(1, 4), min_size=1, max_size=3),
        "#t": st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2),
        "#p": st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2),
        "mesh": st.sampled_from(["main", "lab"]),
        "since_ns": st.integers(0, 4),
        "until_ns": st.integers(0, 4),
        "limit": st.integers(0, 500),
    }
    names = draw(st.sets(st.sampled_from(sorted(conditions))))
    return {name: draw(conditions[name]) for name in sorted(names)}


def naive(document: dict[str, Any], event: Event) -> bool:
    if "authors" in document and event.pubkey not in document["authors"]:
        return False
    if "kinds" in document and event.kind not in document["kinds"]:
        return False
    for key in ("#t", "#p"):
        if key in document:
            pairs = [(tag[0], tag[1]) for tag in event.tags if len(tag) > 1]
            if not any((key[1:], value) in pairs for value in document[key]):
                return False
    if document.get("mesh", "main") != "main":
        return False
    return bool(document.get("since_ns", 0) <= event.created_at_ns <= document.get("until_ns", 4))


@given(document=documents(), event=EVENTS)
def test_a_filter_agrees_with_its_conditions_one_by_one(document: dict[str, Any], event: Event) -> None:
    assert filter_from_json(document).matches(event) is naive(document, event)


@given(documents())
def test_query_parameters_mean_the_same_as_json(document: dict[str, Any]) -> None:
    pairs = [(k, ",".join(map(str, v)) if isinstance(v, list) else str(v)) for k, v in document.items()]
    assert filter_from_query(pairs) == filter_from_json(document)


def test_an_empty_filter_matches_everything() -> None:
    assert filter_from_json({}) == Filter()
    assert Filter().matches(make_event())


def test_ids_and_meshes_are_matched() -> None:
    event = make_event(tags=(("mesh", "lab"),))
    assert filter_from_json({"ids": [event.id], "mesh": "lab"}).matches(event)
    assert not filter_from_json({"ids": ["0" * 64]}).matches(event)
    assert not filter_from_json({"mesh": "main"}).matches(event)


@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        {"ids": []},
        {"ids": "a"},
        {"ids": ["A" * 64]},
        {"ids": [1]},
        {"authors": ["a" * 64]},
        {"kinds": [0]},
        {"kinds": [True]},
        {"kinds": [1.0]},
        {"kinds": ["1"]},
        {"#t": []},
        {"#t": [1]},
        {"#": ["a"]},
        {"#a b": ["a"]},
        {"t": ["a"]},
        {"search": "x"},
        {"mesh": "a.b"},
        {"mesh": ["main"]},
        {"since_ns": -1},
        {"since_ns": 1.0},
        {"until_ns": 2**63},
        {"limit": "5"},
        {"limit": None},
        {"#t": ["a"] * 501},
    ],
)
def test_a_malformed_filter_is_refused(document: Any) -> None:
    with pytest.raises(Refused) as caught:
        filter_from_json(document)
    assert caught.value.code == "filter_invalid"


@pytest.mark.parametrize(
    "pairs",
    [
        [("limit", "501")],
        [("limit", "1e2")],
        [("limit", "-1")],
        [("kinds", "1,,2")],
        [("kinds", "1"), ("kinds", "2")],
        [("ids", "")],
        [("mesh", "")],
        [("order", "asc")],
        [("since_ns", "1" * 30)],
    ],
)
def test_malformed_query_parameters_are_refused(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(Refused) as caught:
        filter_from_query(pairs)
    assert caught.value.code == "filter_invalid"
