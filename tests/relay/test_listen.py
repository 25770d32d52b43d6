"""Where a relay may listen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from posthouse.http.guard import LOOPBACK_NAMES, Authority, Origin
from posthouse.model.errors import PosthouseError
from posthouse.relay.listen import (
    ListenAddress,
    Protection,
    advertised,
    check_listen,
    invite_address,
    is_loopback,
    may_open_main,
    parse_hosts,
    parse_listen,
    parse_origins,
    site_of,
)

HOSTS = (Authority("relay.example", None),)
PROXY = Protection(is_behind_proxy=True, has_admin=True, hosts=HOSTS)
LOOPBACK = ListenAddress("127.0.0.1", 7420)
NETWORK = ListenAddress("192.0.2.1", 7420)
TLS = Protection(Path("cert.pem"), Path("key.pem"), has_admin=True)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:7420", ListenAddress("127.0.0.1", 7420)),
        ("localhost:0", ListenAddress("localhost", 0)),
        ("[::1]:65535", ListenAddress("::1", 65535)),
        ("0.0.0.0:1", ListenAddress("0.0.0.0", 1)),
    ],
)
def test_listen_address_is_parsed_and_shown_alike(text: str, place: ListenAddress) -> None:
    assert parse_listen(text) == place
    assert str(place) == text


@pytest.mark.parametrize(
    "text", ["", "7420", ":7420", "host", "host:", "host:x", "host:65536", "::1:1", "a b:1", "h/p:1"]
)
def test_text_that_is_not_a_listen_address_is_refused(text: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        parse_listen(text)
    assert refused.value.code == "listen_invalid"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_needs_no_protection(host: str) -> None:
    assert is_loopback(ListenAddress(host, 0))
    check_listen(ListenAddress(host, 0), Protection())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"])
@pytest.mark.parametrize(
    ("protection", "code"),
    [
        (Protection(), "listen_unprotected"),
        (Protection(has_admin=True), "listen_unprotected"),
        (Protection(is_behind_proxy=True), "listen_without_admin"),
        (Protection(Path("c"), Path("k")), "listen_without_admin"),
        (Protection(is_behind_proxy=True, has_admin=True), "hosts_missing"),
        (Protection(is_behind_proxy=True, has_admin=True, hosts=HOSTS), None),
        (TLS, None),
    ],
)
def test_beyond_loopback_tls_and_an_administrator_are_needed(
    host: str, protection: Protection, code: str | None
) -> None:
    if code is None:
        check_listen(ListenAddress(host, 0), protection)
        return
    with pytest.raises(PosthouseError) as refused:
        check_listen(ListenAddress(host, 0), protection)
    assert refused.value.code == code


def test_certificate_and_key_go_together() -> None:
    for protection in (Protection(tls_cert=Path("c")), Protection(tls_key=Path("k"))):
        with pytest.raises(PosthouseError) as refused:
            check_listen(ListenAddress("127.0.0.1", 0), protection)
        assert refused.value.code == "tls_invalid"


def test_invites_name_an_address_that_others_can_reach() -> None:
    assert advertised("10.0.0.5:7420", "relay.example:443") == "10.0.0.5:7420"
    assert advertised("0.0.0.0:7420", "relay.example:7420") == "relay.example:7420"
    assert advertised("[::]:7420", "relay.example:7420") == "relay.example:7420"
    assert advertised("0.0.0.0:7420", None) == "0.0.0.0:7420"
    assert advertised("0.0.0.0:7420", "evil/../x:1") == "0.0.0.0:7420"


def test_main_may_be_open_only_where_no_other_machine_can_connect() -> None:
    assert may_open_main(LOOPBACK, Protection())
    assert not may_open_main(LOOPBACK, Protection(allows_open_main=False))
    assert not may_open_main(LOOPBACK, PROXY)
    assert not may_open_main(LOOPBACK, Protection(hosts=HOSTS)), "a tunnel publishes this relay"
    assert not may_open_main(NETWORK, TLS)


@pytest.mark.parametrize(
    "protection",
    [Protection(is_behind_proxy=True, hosts=HOSTS), Protection(hosts=HOSTS), Protection(allows_open_main=False)],
)
def test_loopback_with_a_closed_main_needs_an_administrator(protection: Protection) -> None:
    with pytest.raises(PosthouseError) as refused:
        check_listen(LOOPBACK, protection)
    assert refused.value.code == "listen_without_admin"
    check_listen(LOOPBACK, replace(protection, has_admin=True))


def test_a_relay_is_called_by_the_names_of_its_listener_or_its_proxy() -> None:
    assert site_of(LOOPBACK, Protection()).hosts == LOOPBACK_NAMES
    assert site_of(ListenAddress("127.8.9.10", 1), Protection()).hosts == LOOPBACK_NAMES | {"127.8.9.10"}
    assert site_of(NETWORK, TLS).hosts is None
    assert site_of(NETWORK, replace(TLS, hosts=HOSTS)).hosts == LOOPBACK_NAMES | {"relay.example"}
    behind = site_of(NETWORK, PROXY)
    assert (behind.hosts, behind.public_hosts) == (LOOPBACK_NAMES, frozenset(HOSTS))


def test_hosts_and_origins_are_lists_without_wildcards() -> None:
    assert parse_hosts("Relay.example, relay.example:8443") == (HOSTS[0], Authority("relay.example", 8443))
    assert parse_origins("https://app.example,http://localhost:3000") == (
        Origin("https", "app.example", 443),
        Origin("http", "localhost", 3000),
    )
    for parse, text, code in (
        (parse_hosts, "*.example", "hosts_invalid"),
        (parse_hosts, "relay.example,", "hosts_invalid"),
        (parse_hosts, "https://relay.example", "hosts_invalid"),
        (parse_origins, "*", "origins_invalid"),
        (parse_origins, "null", "origins_invalid"),
        (parse_origins, "app.example", "origins_invalid"),
        (parse_origins, "https://app.example/path", "origins_invalid"),
    ):
        with pytest.raises(PosthouseError) as refused:
            parse(text)
        assert refused.value.code == code


def test_invites_name_the_public_host() -> None:
    assert invite_address(LOOPBACK, Protection()) == "127.0.0.1:7420"
    assert invite_address(LOOPBACK, PROXY) == "relay.example:443"
    assert invite_address(NETWORK, replace(TLS, hosts=HOSTS)) == "relay.example:7420"
    assert invite_address(LOOPBACK, replace(PROXY, hosts=parse_hosts("a.test:8443,b.test"))) == "a.test:8443"
