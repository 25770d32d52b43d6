from __future__ import annotations

import pytest

from posthouse.client import parse_invite
from posthouse.keys import NodeKey
from posthouse.model.errors import Refused

RELAY = NodeKey(b"r" * 32).node
TEXT = f"posthouse://relay.example:7420/team?relay={RELAY}&code=Zk3_-x"


def test_invite_is_read_and_written_back_unchanged() -> None:
    invite = parse_invite(TEXT)
    assert (invite.mesh, invite.relay, invite.code) == ("team", RELAY, "Zk3_-x")
    assert invite.url.origin == "https://relay.example:7420"
    assert str(invite) == TEXT


def test_invite_may_have_several_addresses_of_one_relay() -> None:
    text = TEXT.replace("relay.example:7420", "relay.example:7420,[2001:db8::1]:7421")
    invite = parse_invite(text)
    assert str(invite.url) == "https://relay.example:7420,https://[2001:db8::1]:7421"
    assert str(invite) == text


def test_certificate_of_an_invite_is_that_of_all_its_addresses() -> None:
    text = TEXT.replace("relay.example:7420", "127.0.0.1:7420,localhost:7421") + f"&tls=sha256:{'0' * 64}"
    invite = parse_invite(text)
    assert str(invite.url) == "https://127.0.0.1:7420,https://localhost:7421"
    assert str(invite) == text


def test_code_does_not_show_in_repr() -> None:
    assert "Zk3_-x" not in repr(parse_invite(TEXT))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        TEXT.replace("posthouse://", "https://"),
        TEXT.replace("&code=Zk3_-x", ""),
        TEXT + "&more=1",
        TEXT.replace("team", "te am"),
        TEXT.replace("team", ""),
        TEXT.replace(RELAY, RELAY.upper()),
        TEXT.replace("relay.example:7420", ""),
        TEXT.replace("relay.example:7420", "relay.example:99999999"),
        TEXT.replace("relay.example:7420", "relay.example:7420,"),
        TEXT.replace("relay.example:7420", "relay.example:7420,localhost:7421"),
    ],
)
def test_malformed_invite_is_refused_and_the_error_hides_its_code(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_invite(text)
    assert refused.value.code == "invite_malformed"
    assert "Zk3_-x" not in str(refused.value.problem())
