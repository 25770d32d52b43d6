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
    ],
)
def test_malformed_invite_is_refused_and_the_error_hides_its_code(text: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_invite(text)
    assert refused.value.code == "invite_malformed"
    assert "Zk3_-x" not in str(refused.value.problem())
