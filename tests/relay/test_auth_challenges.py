"""Challenges: 32 bytes, one holder, one use, one minute."""

from __future__ import annotations

import pytest

from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.relay.auth import Challenges, SpentInMemory, open_challenges

ALICE, BOB = "ed25519:" + "a" * 64, "ed25519:" + "b" * 64


def make(clock: FakeClock, secret: bytes = bytes(32), spent: SpentInMemory | None = None) -> Challenges:
    return Challenges(clock, clock.boot_ns, secret, SpentInMemory() if spent is None else spent)


async def refusal(challenges: Challenges, text: str, holder: str = ALICE) -> str:
    with pytest.raises(PosthouseError) as refused:
        await challenges.spend(text, holder)
    return refused.value.code


async def test_challenge_has_32_bytes_and_works_once() -> None:
    challenges = make(FakeClock())
    given = challenges.issue(ALICE)
    assert len(bytes.fromhex(given.text)) == 32
    await challenges.spend(given.text, ALICE)
    assert await refusal(challenges, given.text) == "challenge_invalid"


async def test_challenge_of_another_node_is_refused_and_stays_usable() -> None:
    challenges = make(FakeClock())
    given = challenges.issue(ALICE)
    assert await refusal(challenges, given.text, BOB) == "challenge_invalid"
    await challenges.spend(given.text, ALICE)


async def test_challenge_of_another_relay_is_refused() -> None:
    clock = FakeClock()
    assert await refusal(make(clock), make(clock, bytes(31) + b"1").issue(ALICE).text) == "challenge_invalid"


async def test_challenge_of_a_relay_with_the_same_key_is_accepted_once_by_both_together() -> None:
    clock, key, spent = FakeClock(), NodeKey.generate(), SpentInMemory()
    first, second = open_challenges(clock, key, spent), open_challenges(clock, key, spent)
    given = first.issue(ALICE).text
    await second.spend(given, ALICE)
    assert await refusal(first, given) == "challenge_invalid"
    other = open_challenges(clock, NodeKey.generate(), spent)
    assert await refusal(other, first.issue(ALICE).text) == "challenge_invalid"


async def test_challenge_ends_after_a_minute_of_boot_time_whatever_the_wall_clock_does() -> None:
    clock = FakeClock()
    challenges = open_challenges(clock, NodeKey.generate(), None)
    first, second = challenges.issue(ALICE), challenges.issue(ALICE)
    assert first.expires_at_ns - clock.wall_ns() == 60_000_000_000
    clock.step_wall(-3_600)
    clock.advance(59.9)
    await challenges.spend(first.text, ALICE)
    clock.step_wall(-3_600)
    clock.advance(0.2)
    assert await refusal(challenges, second.text) == "challenge_invalid"


async def test_no_bit_of_a_challenge_can_be_changed() -> None:
    challenges = make(FakeClock())
    packed = bytearray.fromhex(challenges.issue(ALICE).text)
    for index in range(len(packed)):
        changed = bytearray(packed)
        changed[index] ^= 1
        assert await refusal(challenges, changed.hex()) == "challenge_invalid"


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "A" * 64, "٠" * 64, " " * 64, "0" * 66])
async def test_text_that_is_not_a_challenge_is_refused(text: str) -> None:
    assert await refusal(make(FakeClock()), text) == "challenge_invalid"


async def test_issuing_challenges_takes_no_memory_and_spending_them_a_bounded_amount() -> None:
    clock, spent = FakeClock(), SpentInMemory(max_spent=3)
    challenges = make(clock, spent=spent)
    given = [challenges.issue(ALICE).text for _ in range(1_000)]
    assert len(spent) == 0
    for text in given[:3]:
        await challenges.spend(text, ALICE)
    assert await refusal(challenges, given[3]) == "requests_exhausted"
    clock.advance(61)
    await challenges.spend(challenges.issue(ALICE).text, ALICE)
    assert len(spent) == 1
