"""Tokens: valid for an hour, bounded in number, and not kept in memory as text."""

from __future__ import annotations

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.relay.auth import TOKENS_PER_NODE, Tokens

ALICE, BOB = "ed25519:" + "a" * 64, "ed25519:" + "b" * 64


def is_known(tokens: Tokens, text: str) -> bool:
    try:
        tokens.node_of(text)
    except PosthouseError as refused:
        assert refused.code == "token_invalid"
        return False
    return True


def test_token_stands_for_its_node_for_an_hour() -> None:
    clock = FakeClock()
    tokens = Tokens(clock)
    given = tokens.issue(ALICE)
    assert tokens.node_of(given.text) == ALICE
    assert given.expires_at_ns - clock.wall_ns() == 3_600_000_000_000
    clock.step_wall(-86_400)
    clock.advance(3_599)
    assert is_known(tokens, given.text)
    clock.advance(1)
    assert not is_known(tokens, given.text)


def test_unknown_text_is_not_a_token() -> None:
    tokens = Tokens(FakeClock())
    given = tokens.issue(ALICE).text
    for text in ("", given[:-1], given + "=", given.swapcase(), "\udcff"):
        assert not is_known(tokens, text)


def test_token_of_another_relay_is_refused() -> None:
    clock = FakeClock()
    assert not is_known(Tokens(clock), Tokens(clock).issue(ALICE).text)


def test_node_with_too_many_tokens_loses_its_oldest() -> None:
    tokens = Tokens(FakeClock())
    bobs = tokens.issue(BOB).text
    mine = [tokens.issue(ALICE).text for _ in range(TOKENS_PER_NODE + 2)]
    assert [is_known(tokens, text) for text in mine] == [False, False] + [True] * TOKENS_PER_NODE
    assert is_known(tokens, bobs)
    assert len(tokens) == TOKENS_PER_NODE + 1


def test_expired_tokens_leave_memory() -> None:
    clock = FakeClock()
    tokens = Tokens(clock)
    for number in range(100):
        tokens.issue(f"node {number}")
    clock.advance(3_601)
    tokens.issue(ALICE)
    assert len(tokens) == 1
    assert len(tokens._of_node) == 1


def test_all_tokens_together_are_bounded() -> None:
    tokens = Tokens(FakeClock(), max_tokens=3)
    texts = [tokens.issue(f"node {number}").text for number in range(5)]
    assert [is_known(tokens, text) for text in texts] == [False, False, True, True, True]


def test_flood_of_keys_from_one_address_evicts_its_own_tokens_only() -> None:
    tokens = Tokens(FakeClock(), max_tokens=20)
    kept = [tokens.issue(f"member {number}", f"10.0.0.{number}").text for number in range(5)]
    flood = [tokens.issue(f"key {number}", "203.0.113.9").text for number in range(100)]
    assert all(is_known(tokens, text) for text in kept)
    assert [is_known(tokens, text) for text in flood] == [False] * 85 + [True] * 15
    newcomer = tokens.issue(BOB, "10.9.9.9").text
    assert is_known(tokens, newcomer)
    assert all(is_known(tokens, text) for text in kept)


def test_addresses_share_a_full_table_evenly() -> None:
    tokens = Tokens(FakeClock(), max_tokens=20)
    for number in range(200):
        tokens.issue(f"a {number}", "a")
    for number in range(200):
        tokens.issue(f"b {number}", "b")
    assert {home: len(digests) for home, digests in tokens._of_address.items()} == {"a": 10, "b": 10}
    assert len(tokens._heaviest) <= 2 * 20 + 2


def test_memory_does_not_grow_with_tokens_that_are_gone() -> None:
    tokens = Tokens(FakeClock())
    for _ in range(1_000):
        tokens.issue(ALICE, "10.0.0.1")
    assert len(tokens) == TOKENS_PER_NODE
    assert len(tokens._heaviest) <= 2 * TOKENS_PER_NODE


def test_expired_tokens_do_not_make_an_address_heavy() -> None:
    clock = FakeClock()
    tokens = Tokens(clock, max_tokens=10)
    for number in range(10):
        tokens.issue(f"old {number}", "old")
    clock.advance(3_601)
    fresh = [tokens.issue(f"new {number}", "new").text for number in range(9)]
    tokens.issue("late", "old")
    tokens.issue("later", "old")
    assert [is_known(tokens, text) for text in fresh] == [False] + [True] * 8


def test_memory_and_text_forms_do_not_hold_the_secret() -> None:
    tokens = Tokens(FakeClock())
    given = tokens.issue(ALICE)
    assert given.text not in repr(given)
    assert given.text.encode() not in b"".join(tokens._held)
