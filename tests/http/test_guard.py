"""The guard decides by the head of a request alone; each case without a socket."""

from __future__ import annotations

from dataclasses import replace

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from posthouse.http.guard import (
    LOCAL,
    LOOPBACK_NAMES,
    UNIX,
    Authority,
    Guard,
    Origin,
    RequestHead,
    Site,
    TokenRule,
    bearer_token,
    parse_authority,
    parse_origin,
)
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.rate import Rate

RULE = TokenRule(lambda text: text == "secret", "local_token_missing", "local_token_wrong")
RIGHT = RequestHead("GET", "/v1/health", False, ["127.0.0.1:5"], [], ["Bearer secret"])


def refusal(head: RequestHead, guard: Guard | None = None) -> str | None:
    try:
        (guard or Guard(LOCAL, RULE)).check(head)
    except PosthouseError as failure:
        return failure.code
    return None


def test_the_token_from_this_machine_is_accepted() -> None:
    assert refusal(RIGHT) is None
    assert refusal(replace(RIGHT, origins=["http://localhost:5"])) is None


@pytest.mark.parametrize("hosts", [[], ["evil.example"], ["127.0.0.1", "127.0.0.1"], ["localhost:x"], [""]])
def test_another_host_none_or_two_are_refused(hosts: list[str]) -> None:
    assert refusal(replace(RIGHT, hosts=hosts)) == "host_refused"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:6", "https://localhost:5", ""])
def test_a_foreign_origin_is_refused_with_and_without_a_token_rule(origin: str) -> None:
    head = replace(RIGHT, origins=[origin])
    assert refusal(head) == "origin_refused"
    assert refusal(head, Guard(UNIX)) == "origin_refused"


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
    assert refusal(head, Guard(UNIX)) == "token_in_query"


def test_a_trusted_transport_needs_neither_host_nor_token() -> None:
    assert refusal(replace(RIGHT, hosts=[], authorizations=[]), Guard(UNIX)) is None


def test_requests_without_the_token_do_not_use_up_the_rate() -> None:
    guard = Guard(LOCAL, RULE, rate=Rate(per_s=1, burst=2), clock=FakeClock())
    without = replace(RIGHT, authorizations=())
    assert {refusal(without, guard) for _ in range(50)} == {RULE.missing_code}
    assert refusal(RIGHT, guard) is None


def test_requests_beyond_the_rate_wait_for_the_clock() -> None:
    clock = FakeClock()
    guard = Guard(LOCAL, RULE, rate=Rate(per_s=1, burst=2), clock=clock)
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


PUBLIC = Site("http", LOOPBACK_NAMES, frozenset({Authority("relay.example", None), Authority("alt.example", 8443)}))
ANY_NAME = Site("https", None)


def relay_refusal(site: Site, host: str, *origins: str) -> str | None:
    return refusal(RequestHead("GET", "/v1/stream", False, [host], list(origins), []), Guard(site))


@pytest.mark.parametrize(
    "origin",
    ["https://relay.example", "HTTPS://Relay.Example:443", "https://alt.example:8443", "http://localhost:7420"],
)
def test_the_origins_of_a_published_server_are_https_and_its_public_hosts(origin: str) -> None:
    host = "localhost:7420" if "localhost" in origin else "relay.example"
    assert relay_refusal(PUBLIC, host, origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "http://relay.example",
        "https://relay.example:8443",
        "https://alt.example",
        "https://relay.example.evil.test",
        "https://evil.test",
        "https://user@relay.example",
        "https://relay.example/",
        "null",
        "",
    ],
)
def test_other_origins_of_a_published_server_are_refused(origin: str) -> None:
    assert relay_refusal(PUBLIC, "relay.example", origin) == "origin_refused"


def test_a_published_server_refuses_hosts_that_it_does_not_have() -> None:
    assert relay_refusal(PUBLIC, "relay.example:443") is None
    assert relay_refusal(PUBLIC, "127.0.0.1:7420") is None
    assert relay_refusal(PUBLIC, "evil.test") == "host_refused"


def test_a_server_that_serves_every_host_takes_only_pages_of_that_host() -> None:
    assert relay_refusal(ANY_NAME, "relay.example:7420") is None
    assert relay_refusal(ANY_NAME, "relay.example:7420", "https://relay.example:7420") is None
    assert relay_refusal(ANY_NAME, "relay.example:7420", "https://relay.example") == "origin_refused"
    assert relay_refusal(ANY_NAME, "relay.example:7420", "http://relay.example:7420") == "origin_refused"
    assert refusal(RequestHead("GET", "/", False, ["a.test", "b.test"], [], []), Guard(ANY_NAME)) == "host_refused"


def test_only_listed_pages_of_other_sites_may_read_answers() -> None:
    guard = Guard(Site(origins=frozenset({Origin("https", "app.example", 443)})))
    head = RequestHead("GET", "/", False, ["localhost:5"], [], [])
    assert guard.check(head) is None
    assert guard.check(replace(head, origins=["http://localhost:5"])) is None
    assert guard.check(replace(head, origins=["https://app.example"])) == "https://app.example"


def test_listed_origins_are_allowed_and_a_second_origin_header_is_not() -> None:
    site = Site(origins=frozenset({Origin("https", "app.example", 443)}))
    assert relay_refusal(site, "localhost:5", "https://app.example") is None
    assert relay_refusal(site, "localhost:5", "https://app.example", "https://app.example") == "origin_refused"
    assert relay_refusal(site, "localhost:5", "https://app.example:444") == "origin_refused"


def test_origins_of_a_path_hold_on_that_path_only_and_null_never_does() -> None:
    guard = Guard(allows_on_path=lambda path, _origin: path == "/ws")
    head = RequestHead("GET", "/ws", False, ["localhost"], ["https://app.example"], [])
    assert refusal(head, guard) is None
    assert refusal(replace(head, path="/v1/stream"), guard) == "origin_refused"
    assert refusal(replace(head, origins=["null"]), guard) == "origin_refused"


def test_a_flood_of_refusals_is_logged_in_part() -> None:
    clock = FakeClock()
    guard = Guard(LOCAL, clock=clock)
    with structlog.testing.capture_logs() as logged:
        for _ in range(1_000):
            refusal(replace(RIGHT, hosts=["evil.example"]), guard)
        assert len(logged) == 20
        clock.advance(1.0)
        refusal(replace(RIGHT, hosts=["evil.example"]), guard)
    assert len(logged) == 21


@given(st.text(max_size=40), st.text(max_size=20))
def test_no_text_is_an_own_origin_by_accident(origin: str, host: str) -> None:
    if refusal(replace(RIGHT, origins=[origin], hosts=[host])) is None:
        parsed, named = parse_origin(origin), parse_authority(host)
        assert parsed is not None and named is not None
        assert parsed.scheme == "http" and parsed.host in LOOPBACK_NAMES and parsed.port == (named.port or 80)


def test_only_the_bearer_scheme_has_a_token() -> None:
    assert bearer_token("Bearer abc") == "abc"
    assert bearer_token("Basic abc") is None
