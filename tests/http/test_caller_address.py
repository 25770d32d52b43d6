"""The address that a request counts for, from what the connection and the headers say."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.http.caller_address import (
    AddressRule,
    counted_address,
    forwarded_chain,
    parse_networks,
    x_forwarded_chain,
)
from posthouse.model.errors import PosthouseError

PROXIES = AddressRule(parse_networks("10.0.0.0/8, 192.0.2.7,fd00::/8"))
PROXY = "10.0.0.1"


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("local", "local"),
        ("", ""),
    ],
)
def test_ipv6_counts_by_its_network(text: str, counted: str) -> None:
    assert counted_address(text) == counted


@pytest.mark.parametrize(
    ("value", "chain"),
    [
        ("203.0.113.9", ["203.0.113.9"]),
        (" 203.0.113.9 ,10.0.0.2", ["203.0.113.9", "10.0.0.2"]),
        ("203.0.113.9:5678, [2001:db8::1]:80, 2001:db8::2", ["203.0.113.9", "2001:db8::1", "2001:db8::2"]),
        ("unknown, ,x", ["unknown", "x"]),
        ("", []),
    ],
)
def test_x_forwarded_for_is_split(value: str, chain: list[str]) -> None:
    assert x_forwarded_chain([value]) == chain


@pytest.mark.parametrize(
    ("value", "chain"),
    [
        ("for=192.0.2.60;proto=http;by=203.0.113.43", ["192.0.2.60"]),
        ('For="[2001:db8:cafe::17]:4711"', ["2001:db8:cafe::17"]),
        ("for=192.0.2.43, for=198.51.100.17;by=x", ["192.0.2.43", "198.51.100.17"]),
        ('for="_gazonk"', ["_gazonk"]),
        ("proto=https", [""]),
        ("proto=https, for=192.0.2.1", ["", "192.0.2.1"]),
        ('for="a,for=9.9.9.9";by=b', ["a,for=9.9.9.9"]),
        ('for="192.0.2.1', [""]),
        ("for=192.0.2.1 for=192.0.2.2", [""]),
        ('for="1.2.3.4\\"', [""]),
        ("for = 192.0.2.1", [""]),
        ("by=1.1.1.1;FOR=192.0.2.9:80", ["192.0.2.9"]),
    ],
)
def test_forwarded_is_split_and_a_mistake_names_no_address(value: str, chain: list[str]) -> None:
    assert forwarded_chain([value]) == chain


@pytest.mark.parametrize(
    ("peer", "forwarded", "x_forwarded_for", "caller"),
    [
        ("203.0.113.9", "for=1.1.1.1", "2.2.2.2", "203.0.113.9"),  # a stranger's word about itself
        (PROXY, None, "203.0.113.9", "203.0.113.9"),
        (PROXY, "for=203.0.113.9", None, "203.0.113.9"),
        (PROXY, None, "1.1.1.1, 203.0.113.9, 10.1.1.1, 192.0.2.7", "203.0.113.9"),  # the last that no proxy has
        (PROXY, None, "10.9.9.9, 10.1.1.1", "10.9.9.9"),  # a client inside the trusted network
        (PROXY, None, None, PROXY),
        (PROXY, None, "unknown", PROXY),
        (PROXY, None, "203.0.113.9, nonsense, 10.1.1.1", "10.1.1.1"),
        (PROXY, "for=1.1.1.1", "203.0.113.9", PROXY),  # one of the two is invented
        (PROXY, "for=203.0.113.9", "203.0.113.9", "203.0.113.9"),
        (PROXY, None, "2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fd00::5", 'for="[2001:db8:1:2::9]:80"', None, "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", None, "203.0.113.9", "203.0.113.9"),
        ("local", None, "203.0.113.9", "local"),
    ],
)
def test_caller_is_the_last_address_that_no_trusted_proxy_has(
    peer: str, forwarded: str | None, x_forwarded_for: str | None, caller: str
) -> None:
    given = [[] if each is None else [each] for each in (forwarded, x_forwarded_for)]
    assert PROXIES.caller(peer, *given) == caller


def test_several_headers_of_one_name_are_one_list() -> None:
    assert PROXIES.caller(PROXY, [], ["1.1.1.1", "203.0.113.9, 10.2.2.2"]) == "203.0.113.9"


def test_connection_of_a_trusted_proxy_counts_for_no_address_of_its_own() -> None:
    assert (PROXIES.peer(PROXY), PROXIES.peer("203.0.113.9")) == (None, "203.0.113.9")


def test_nothing_is_counted_behind_an_unknown_proxy() -> None:
    rule = AddressRule(is_counted=False)
    assert (rule.peer("203.0.113.9"), rule.caller("203.0.113.9", [], ["1.1.1.1"])) == (None, None)


@pytest.mark.parametrize("text", ["", "10.0.0.1,", "nonsense", "10.0.0.0/33", "proxy.example"])
def test_list_of_proxies_with_a_mistake_is_refused(text: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        parse_networks(text)
    assert refused.value.code == "trusted_proxies_invalid"


def test_long_run_of_spaces_does_not_occupy_the_server() -> None:
    started_s = time.process_time()
    assert forwarded_chain(["for=192.0.2.1," + " " * 60_000 + "("]) == ["192.0.2.1", ""]
    assert time.process_time() - started_s < 5  # takes less than a millisecond; with backtracking, minutes


@given(st.lists(st.text()), st.lists(st.text()))
def test_any_header_gives_some_address_and_no_exception(forwarded: list[str], x_forwarded_for: list[str]) -> None:
    assert PROXIES.caller(PROXY, forwarded, x_forwarded_for)


@given(st.text(max_size=40))
def test_client_cannot_change_what_its_proxy_appended(invented: str) -> None:
    assert PROXIES.caller(PROXY, [], [f"{invented}, 203.0.113.9"]) == "203.0.113.9"
