"""The guard decides by the head of a request alone; each case without a socket."""

from __future__ import annotations

from dataclasses import replace

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from posthouse.http.guard import Guard, RequestHead, TokenRule, bearer_token, is_own_origin
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.rate import Rate

RULE = TokenRule(lambda text: text == "secret", "local_token_missing", "local_token_wrong")
RIGHT = RequestHead("GET", "/v1/health", False, ["127.0.0.1:5"], None, ["Bearer secret"])


def refusal(head: RequestHead, guard: Guard | None = None) -> str | None:
    try:
        (guard or Guard(RULE)).check(head)
    except PosthouseError as failure:
        return failure.code
    return None


def test_the_token_from_this_machine_is_accepted() -> None:
    assert refusal(RIGHT) is None
    assert refusal(replace(RIGHT, origin="http://localhost:5")) is None


@pytest.mark.parametrize("hosts", [[], ["evil.example"], ["127.0.0.1", "127.0.0.1"], ["localhost:x"], [""]])
def test_another_host_none_or_two_are_refused(hosts: list[str]) -> None:
    assert refusal(replace(RIGHT, hosts=hosts)) == "host_refused"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:6", "https://localhost:5", ""])
def test_a_foreign_origin_is_refused_with_and_without_a_token_rule(origin: str) -> None:
    head = replace(RIGHT, origin=origin)
    assert refusal(head) == "origin_refused"
    assert refusal(head, Guard(None)) == "origin_refused"


@pytest.mark.parametrize(
    ("authorizations", "code"),
    [
        ([], "local_token_missing"),
        (["Bearer wrong"], "local_token_wrong"),
        (["bearer secret"], "local_token_wrong"),
        (["Basic secret"], "local_token_wrong"),
        (["Bearer secret", "Bearer secret"], "local_token_wrong"),
    ],
)
def test_a_missing_and_a_wrong_token_have_their_codes(authorizations: list[str], code: str) -> None:
    assert refusal(replace(RIGHT, authorizations=authorizations)) == code


def test_a_token_in_the_query_is_refused_even_on_a_trusted_transport() -> None:
    head = replace(RIGHT, has_token_in_query=True)
    assert refusal(head) == "token_in_query"
    assert refusal(head, Guard(None)) == "token_in_query"


def test_a_trusted_transport_needs_neither_host_nor_token() -> None:
    assert refusal(replace(RIGHT, hosts=[], authorizations=[]), Guard(None)) is None


def test_requests_beyond_the_rate_wait_for_the_clock() -> None:
    clock = FakeClock()
    guard = Guard(RULE, rate=Rate(per_s=1, burst=2), clock=clock)
    assert [refusal(RIGHT, guard) for _ in range(3)] == [None, None, "request_rate_exceeded"]
    clock.advance(1.0)
    assert [refusal(RIGHT, guard) for _ in range(2)] == [None, "request_rate_exceeded"]


def test_refusals_are_logged_without_the_secret() -> None:
    with structlog.testing.capture_logs() as logged:
        refusal(replace(RIGHT, authorizations=["Bearer guess"]))
        refusal(replace(RIGHT, hosts=["evil.example"]))
        refusal(replace(RIGHT, authorizations=[]))
    assert [entry["security"] for entry in logged] == ["local_token_wrong", "host_refused"]
    assert "guess" not in repr(logged) and "evil" not in repr(logged)


@given(st.text(max_size=40), st.text(max_size=20))
def test_no_origin_text_is_own_by_accident(origin: str, host: str) -> None:
    assert not is_own_origin(origin, host) or origin.lower().startswith("http://")


def test_only_the_bearer_scheme_has_a_token() -> None:
    assert bearer_token("Bearer abc") == "abc"
    assert bearer_token("Basic abc") is None
