"""Where a relay may listen."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.relay.listen import ListenAddress, Protection, advertised, check_listen, is_loopback, parse_listen

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
        (Protection(is_behind_proxy=True, has_admin=True), None),
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
