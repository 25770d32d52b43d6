"""Request targets and routes: split before decoded, never normalised."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.model.errors import PosthouseError
from posthouse.relay.http.router import Router, parse_target
from posthouse.relay.openapi import ROUTES

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.lists(st.tuples(TEXTS.filter(bool), TEXTS), max_size=3))
def test_what_was_encoded_comes_back(segments: list[str], query: list[tuple[str, str]]) -> None:
    path = "/" + "/".join(quote(segment, safe="") for segment in segments)
    text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    target = parse_target(f"{path}?{text}")
    assert list(target.segments) == segments
    assert list(target.query) == query
    assert parse_target(f"http://relay:7420{path}?{text}") == target


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_target_or_refused_with_its_code(text: str) -> None:
    try:
        parse_target(text)
    except PosthouseError as refusal:
        assert refusal.code == "path_invalid"


@pytest.mark.parametrize(
    "text", ["", "*", "v1/info", "/%", "/%2", "/%gg", "/%ff", "/%c3%28", "/a b", "/é", "/a#b", "/\t"]
)
def test_each_malformed_target_is_refused(text: str) -> None:
    with pytest.raises(PosthouseError, match="path"):
        parse_target(text)


def test_fixed_segments_win_over_parameters() -> None:
    router = Router(ROUTES)
    assert router.find("GET", ["v1", "events", "count"]).route.path == "/v1/events/count"
    found = router.find("GET", ["v1", "events", "0" * 64])
    assert (found.route.path, found.params) == ("/v1/events/{id}", {"id": "0" * 64})


def test_only_d_may_be_empty() -> None:
    router = Router(ROUTES)
    found = router.find("GET", ["v1", "events", "address", "30000", "node", "", "history"])
    assert found.params == {"kind": "30000", "pubkey": "node", "d": ""}
    for segments in (["v1", "events", ""], ["v1", "meshes", "", "members"], ["v1", "events", "address", "", "n", "d"]):
        with pytest.raises(PosthouseError, match="nothing at"):
            router.find("GET", segments)


def test_every_route_has_a_name_of_its_own_and_says_what_it_answers() -> None:
    names = [route.name for route in ROUTES]
    assert len(set(names)) == len(names)
    assert all(route.answers and route.summary for route in ROUTES)
