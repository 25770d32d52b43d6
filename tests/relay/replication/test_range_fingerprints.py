"""Range fingerprints find exactly the difference of two sets, in messages that stay small."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.relay.replication.range_fingerprints import (
    Mode,
    RangeNote,
    answer,
    decode_message,
    difference_of,
    encode_message,
    first_message,
    is_settled,
    key_of,
)

KEYS = st.builds(key_of, st.integers(0, 50), st.integers(0, 300).map(lambda number: number.to_bytes(32, "big")))
IDS = st.lists(st.binary(min_size=32, max_size=32), max_size=3).map(b"".join)
MESSAGES = st.lists(
    st.one_of(
        st.just((Mode.SKIP,)),
        st.tuples(st.just(Mode.FINGERPRINT), st.binary(min_size=16, max_size=16)),
        st.tuples(st.just(Mode.IDS), IDS),
        st.tuples(st.just(Mode.DIFFERENCE), IDS, IDS),
    ),
    min_size=1,
    max_size=5,
)


class Exchange:
    """Two sides that answer each other, and the bytes that this takes."""

    def __init__(self, left: Sequence[bytes], right: Sequence[bytes], max_bytes: int = 10**9) -> None:
        self.sides = (sorted(left), sorted(right))
        self.only: tuple[set[bytes], set[bytes]] = (set(), set())
        self.bytes = self.messages = 0
        self._max_bytes = max_bytes

    def run(self) -> None:
        message, side = first_message(), 0
        while not is_settled(message):
            message = answer(self.sides[side], decode_message(encode_message(message)), self._max_bytes)
            self.bytes += len(encode_message(message))
            self.messages += 1
            assert self.messages < 10_000, "it has no end"
            found = difference_of(message)
            self.only[side].update(found.here)
            self.only[1 - side].update(found.there)
            side = 1 - side


def _ids(keys: set[bytes]) -> set[bytes]:
    return {key[8:] for key in keys}


@given(st.sets(KEYS, max_size=200), st.sets(KEYS, max_size=200), st.sampled_from([1, 500, 10**9]))
def test_exchange_finds_exactly_what_only_one_side_has(left: set[bytes], right: set[bytes], max_bytes: int) -> None:
    left, right = _one_time_per_id(left), _one_time_per_id(right)
    exchange = Exchange(sorted(left), sorted(right), max_bytes)
    exchange.run()
    assert exchange.only == (_ids(left - right), _ids(right - left))


def _one_time_per_id(keys: set[bytes]) -> set[bytes]:
    """Keep one key of each id: an id covers the creation time."""
    return set({key[8:]: key_of(int.from_bytes(key[8:], "big") % 7, key[8:]) for key in keys}.values())


@given(MESSAGES)
def test_message_is_the_same_after_its_way_over_the_wire(notes: list[tuple[Any, ...]]) -> None:
    message = [RangeNote(bytes([at]), *note) for at, note in enumerate(notes)]
    message[-1] = message[-1]._replace(bound=b"")
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused_and_never_hang(data: bytes) -> None:
    try:
        decode_message(data)
    except ValueError:
        return


@pytest.mark.parametrize("bounds", [[], [b"a"], [b"b", b"a", b""], [b"", b""], [b"a", b"a", b""]])
def test_ranges_that_do_not_cover_all_keys_in_order_are_refused(bounds: list[bytes]) -> None:
    with pytest.raises(ValueError, match="range"):
        decode_message(encode_message([RangeNote(bound, Mode.SKIP) for bound in bounds]))


def test_ten_differences_among_many_take_kilobytes() -> None:
    chance = random.Random(7)
    common = [key_of(chance.randrange(10**18, 2 * 10**18), chance.randbytes(32)) for _ in range(20_000)]
    few = [key_of(chance.randrange(10**18, 2 * 10**18), chance.randbytes(32)) for _ in range(10)]
    exchange = Exchange(common + few[:5], common + few[5:])
    exchange.run()
    assert exchange.only == (_ids(set(few[:5])), _ids(set(few[5:])))
    assert exchange.bytes < 40_000, "the ids alone are 640 kB"
    assert exchange.messages <= 10
