"""Challenges: 32 bytes, one holder, one use, one minute."""

from __future__ import annotations

import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.relay.auth import Challenges

ALICE, BOB = "ed25519:" + "a" * 64, "ed25519:" + "b" * 64


def refusal(challenges: Challenges, text: str, holder: str = ALICE) -> str:
    with pytest.raises(PosthouseError) as refused:
        challenges.spend(text, holder)
    return refused.value.code


def test_challenge_has_32_bytes_and_works_once() -> None:
    challenges = Challenges(FakeClock())
    given = challenges.issue(ALICE)
    assert len(bytes.fromhex(given.text)) == 32
    challenges.spend(given.text, ALICE)
    assert refusal(challenges, given.text) == "challenge_invalid"


def test_challenge_of_another_node_is_refused_and_stays_usable() -> None:
    challenges = Challenges(FakeClock())
    given = challenges.issue(ALICE)
    assert refusal(challenges, given.text, BOB) == "challenge_invalid"
    challenges.spend(given.text, ALICE)


def test_challenge_of_another_relay_is_refused() -> None:
    clock = FakeClock()
    assert refusal(Challenges(clock), Challenges(clock).issue(ALICE).text) == "challenge_invalid"


def test_challenge_ends_after_a_minute_of_boot_time_whatever_the_wall_clock_does() -> None:
    clock = FakeClock()
    challenges = Challenges(clock)
    first, second = challenges.issue(ALICE), challenges.issue(ALICE)
    assert first.expires_at_ns - clock.wall_ns() == 60_000_000_000
    clock.step_wall(-3_600)
    clock.advance(59.9)
    challenges.spend(first.text, ALICE)
    clock.step_wall(-3_600)
    clock.advance(0.2)
    assert refusal(challenges, second.text) == "challenge_invalid"


def test_no_bit_of_a_challenge_can_be_changed() -> None:
    challenges = Challenges(FakeClock())
    packed = bytearray.fromhex(challenges.issue(ALICE).text)
    for index in range(len(packed)):
        changed = bytearray(packed)
        changed[index] ^= 1
        assert refusal(challenges, changed.hex()) == "challenge_invalid"


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "A" * 64, "٠" * 64, " " * 64, "0" * 66])
def test_text_that_is_not_a_challenge_is_refused(text: str) -> None:
    assert refusal(Challenges(FakeClock()), text) == "challenge_invalid"


def test_issuing_challenges_takes_no_memory_and_spending_them_a_bounded_amount() -> None:
    clock = FakeClock()
    challenges = Challenges(clock, max_spent=3)
    given = [challenges.issue(ALICE).text for _ in range(1_000)]
    assert len(challenges._spent) == 0
    for text in given[:3]:
        challenges.spend(text, ALICE)
    assert refusal(challenges, given[3]) == "requests_exhausted"
    clock.advance(61)
    challenges.spend(challenges.issue(ALICE).text, ALICE)
    assert len(challenges._spent) == 1
