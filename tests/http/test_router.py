"""Request targets and routes: targets are split before they are decoded and never normalised."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.http.response import HttpResponse
from posthouse.http.router import Route, Router, parse_target
from posthouse.model.errors import PosthouseError

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)


async def handler(_call: object) -> HttpResponse:
    return HttpResponse()


ROUTES = (
    Route("GET", "/things", handler),
    Route("POST", "/things", handler),
    Route("GET", "/things/{id}", handler),
    Route("DELETE", "/things/{id}", handler),
    Route("GET", "/things/count", handler),
    Route("GET", "/things/{id}/notes/{note}", handler, may_be_empty=frozenset({"note"})),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.lists(st.tuples(TEXTS.filter(bool), TEXTS), max_size=3))
def test_an_encoded_target_decodes_to_its_parts(segments: list[str], query: list[tuple[str, str]]) -> None:
    path = "/" + "/".join(quote(segment, safe="") for segment in segments)
    text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query)
    target = parse_target(f"{path}?{text}")
    assert list(target.segments) == segments
    assert list(target.query) == query
    assert parse_target(f"http://relay:7420{path}?{text}") == target


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_target_or_path_invalid(text: str) -> None:
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


def test_a_quoted_slash_stays_inside_its_segment_and_dots_are_names() -> None:
    assert parse_target("/a%2Fb/../.").segments == ("a/b", "..", ".")


def test_targets_with_a_query_and_long_ones_are_not_remembered() -> None:
    assert parse_target("/v1/send") is parse_target("/v1/send")
    assert parse_target("/v1/send?token=x") is not parse_target("/v1/send?token=x")
    assert parse_target("/" + "a" * 300) is not parse_target("/" + "a" * 300)


def test_fixed_segments_win_over_parameters_wherever_they_stand_in_the_table() -> None:
    router = Router(ROUTES)
    assert router.find("GET", ("things", "count")).route.path == "/things/count"
    found = router.find("GET", ("things", "7"))
    assert (found.route.path, found.params) == ("/things/{id}", {"id": "7"})


def test_only_parameters_that_may_be_empty_match_an_empty_segment() -> None:
    router = Router(ROUTES)
    assert router.find("GET", ("things", "7", "notes", "")).params == {"id": "7", "note": ""}
    for segments in (("things", ""), ("things", "", "notes", "1"), ("",), ("things", "7", "notes")):
        with pytest.raises(PosthouseError) as refused:
            router.find("GET", segments)
        assert refused.value.code == "route_unknown"


def test_a_path_under_another_method_is_refused_with_the_methods_it_has() -> None:
    with pytest.raises(PosthouseError) as refused:
        Router(ROUTES).find("PATCH", ("things", "7"))
    assert refused.value.code == "method_not_allowed"
    assert refused.value.fields["allowed"] == "GET, DELETE"


def test_head_is_get_unless_the_server_does_not_serve_it() -> None:
    assert Router(ROUTES).find("HEAD", ("things",)).route.method == "GET"
    with pytest.raises(PosthouseError) as refused:
        Router(ROUTES, serves_head=False).find("HEAD", ("things",))
    assert refused.value.code == "method_not_allowed"
