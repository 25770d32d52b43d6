from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from posthouse.model.clock import FakeClock
from posthouse.model.errors import Refused
from posthouse.model.ulid import UlidGenerator, next_ulid, ulid_ms, validate_ulid

MS = st.integers(0, 2**48 - 1)
RANDOM = st.binary(min_size=10, max_size=10)


@given(now_ms=MS, random_bytes=RANDOM)
def test_an_id_is_a_ulid_of_its_time_and_random_bytes(now_ms: int, random_bytes: bytes) -> None:
    text = next_ulid(None, now_ms, random_bytes)
    assert text == str(ULID.from_bytes(now_ms.to_bytes(6, "big") + random_bytes))
    assert validate_ulid(text) == text
    assert ulid_ms(text) == now_ms


@given(steps=st.lists(st.tuples(st.integers(-5_000, 5_000), RANDOM), min_size=2, max_size=30))
def test_ids_grow_however_the_clock_steps(steps: list[tuple[int, bytes]]) -> None:
    now_ms, previous = 1_700_000_000_000, None
    for step, random_bytes in steps:
        now_ms += step
        minted = next_ulid(previous, now_ms, random_bytes)
        assert previous is None or minted > previous
        previous = minted


def test_a_full_millisecond_runs_over_into_the_next() -> None:
    full = next_ulid(None, 1_000, b"\xff" * 10)
    after = next_ulid(full, 1_000, b"\x00" * 10)
    assert after > full
    assert ulid_ms(after) == 1_001


def test_the_last_possible_id_has_no_successor() -> None:
    with pytest.raises(Refused, match="no greater ULID"):
        next_ulid("7" + "Z" * 25, 0, b"\x00" * 10)


def test_a_time_beyond_48_bits_is_refused() -> None:
    with pytest.raises(Refused, match="48 bits"):
        next_ulid(None, 2**48, b"\x00" * 10)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 25,
        "0" * 27,
        "8" + "0" * 25,
        "o" * 26,
        "I" + "0" * 25,
        "0" * 25 + "L",
        "0" * 25 + "U",
        "0" * 25 + "a",
        "0" * 26 + "\n",
    ],
)
def test_other_spellings_are_no_ulids(text: str) -> None:
    with pytest.raises(Refused) as caught:
        validate_ulid(text)
    assert caught.value.code == "id_invalid"


def test_a_minter_continues_after_the_id_it_is_given_and_through_a_clock_step() -> None:
    clock = FakeClock()
    minter = UlidGenerator(clock, previous=next_ulid(None, 1_900_000_000_000, b"\x01" * 10))
    ids = [minter.mint()]
    clock.step_wall(-3_600)
    ids.append(minter.mint())
    assert ids[0] > next_ulid(None, 1_900_000_000_000, b"\x01" * 10)
    assert ids[1] > ids[0]


def test_a_minter_never_gives_two_threads_the_same_id() -> None:
    minter = UlidGenerator(FakeClock())
    minted: list[list[str]] = [[] for _ in range(4)]

    def work(mine: list[str]) -> None:
        mine.extend(minter.mint() for _ in range(500))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in minted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    together = [text for mine in minted for text in mine]
    assert len(together) == 2_000
    assert len(set(together)) == 2_000
    assert all(mine == sorted(mine) for mine in minted)
