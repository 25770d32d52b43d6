from __future__ import annotations

import pytest

from posthouse.client import parse_relay_url
from posthouse.model.errors import Refused


@pytest.mark.parametrize(
    ("text", "origin", "stream"),
    [
        ("http://127.0.0.1:7420", "http://127.0.0.1:7420", "ws://127.0.0.1:7420/v1/stream"),
        ("ws://127.0.0.1:7420/", "http://127.0.0.1:7420", "ws://127.0.0.1:7420/v1/stream"),
        ("https://relay.example", "https://relay.example:443", "wss://relay.example:443/v1/stream"),
        ("wss://relay.example:7420", "https://relay.example:7420", "wss://relay.example:7420/v1/stream"),
        ("127.0.0.1:7420", "http://127.0.0.1:7420", "ws://127.0.0.1:7420/v1/stream"),
        ("localhost", "http://localhost:7420", "ws://localhost:7420/v1/stream"),
        ("relay.example:9", "https://relay.example:9", "wss://relay.example:9/v1/stream"),
        ("[::1]:7420", "http://[::1]:7420", "ws://[::1]:7420/v1/stream"),
    ],
)
def test_address_gives_one_origin_and_its_stream(text: str, origin: str, stream: str) -> None:
    url = parse_relay_url(text)
    assert (url.origin, url.stream) == (origin, stream)


@pytest.mark.parametrize(
    "text",
    [
        "ftp://relay.example",
        "http://",
        "",
        "http://u:p@127.0.0.1:1",
        "127.0.0.1:x",
        "127.0.0.1:1/path",
        ":7420",
        "[::1",
        "http://[::1",
    ],
)
def test_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_relay_url(text)
    assert refused.value.code == "relay_url_invalid"


def test_another_machine_without_tls_is_refused_unless_allowed() -> None:
    with pytest.raises(Refused) as refused:
        parse_relay_url("http://relay.example:7420")
    assert refused.value.code == "relay_plain"
    assert parse_relay_url("http://relay.example:7420", allow_plain=True).origin == "http://relay.example:7420"
