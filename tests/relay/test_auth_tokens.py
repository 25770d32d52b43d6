"""Tokens: valid for an hour at every relay with the same key, and forged by none."""

from __future__ import annotations

from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.relay.auth import Tokens, open_tokens, peer_tokens

ALICE = "ed25519:" + "a" * 64
SECRET = bytes(32)


def is_known(tokens: Tokens, text: str) -> bool:
    try:
        tokens.node_of(text)
    except PosthouseError as refused:
        assert refused.code == "token_invalid"
        return False
    return True


def test_token_stands_for_its_node_for_an_hour() -> None:
    clock = FakeClock()
    tokens = Tokens(clock, SECRET)
    given = tokens.issue(ALICE)
    assert tokens.node_of(given.text) == ALICE
    assert given.expires_at_ns - clock.wall_ns() == 3_600_000_000_000
    clock.advance(3_599)
    assert is_known(tokens, given.text)
    clock.advance(1)
    assert not is_known(tokens, given.text)


def test_unknown_text_is_not_a_token() -> None:
    tokens = Tokens(FakeClock(), SECRET)
    given = tokens.issue(ALICE).text
    for text in ("", given[:-1], given + "=", given.swapcase(), "\udcff", "\udcff" * 72, "é" * 72):
        assert not is_known(tokens, text)


def test_no_character_of_a_token_can_be_changed() -> None:
    tokens = Tokens(FakeClock(), SECRET)
    given = tokens.issue(ALICE).text
    for index, character in enumerate(given):
        changed = given[:index] + ("A" if character != "A" else "B") + given[index + 1 :]
        assert not is_known(tokens, changed)


def test_token_works_at_every_relay_with_the_same_key_and_at_no_other() -> None:
    clock, key = FakeClock(), NodeKey.generate()
    given = open_tokens(clock, key).issue(ALICE).text
    assert is_known(open_tokens(clock, key), given)
    assert not is_known(open_tokens(clock, NodeKey.generate()), given)


def test_token_of_a_node_does_not_make_it_a_relay() -> None:
    clock, key = FakeClock(), NodeKey.generate()
    given = open_tokens(clock, key).issue(key.node).text
    assert not is_known(peer_tokens(key, clock), given)
    assert is_known(peer_tokens(key, clock), peer_tokens(key, clock).issue(key.node).text)


def test_text_form_of_a_token_does_not_hold_the_secret() -> None:
    given = Tokens(FakeClock(), SECRET).issue(ALICE)
    assert given.text not in repr(given)
