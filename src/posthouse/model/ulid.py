"""Monotonic ULIDs: 48 bits of milliseconds and 80 random bits in Crockford's base 32.

An id is strictly greater than the previous one, also within one millisecond and after the clock steps back: then the
previous id is incremented. Text order is number order. Code that generates ids across processes keeps the last id in
its store and calls `next_ulid`; UlidGenerator does it for one process.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise, product

from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import MILLISECOND_NS

RANDOM_BYTES = 10
_RANDOM_BITS = 80
_MS_MAX = 2**48 - 1
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_FORM = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
#: from Crockford's digits to those of int(..., 32): one C call instead of a loop over 26 characters
_TO_INT = str.maketrans(_ALPHABET, "0123456789ABCDEFGHIJKLMNOPQRSTUV")
_PAIRS = ["".join(pair) for pair in product(_ALPHABET, repeat=2)]
_SHIFTS = tuple(range(120, -1, -10))
_TIME_CHARS = 10
_SUCCESSORS = dict(pairwise(_ALPHABET))


def next_ulid(previous: str | None, now_ms: int, random_bytes: bytes) -> str:
    """Return an id greater than `previous`, with the current millisecond if that is later."""
    last = -1
    if previous is not None:
        digit = validate_ulid(previous)[-1]
        if digit in _SUCCESSORS and previous[:_TIME_CHARS] >= _time_text(now_ms):  # many ids of one millisecond
            return previous[:-1] + _SUCCESSORS[digit]
        last = _number(previous)
    return _text(_next_number(last, now_ms, random_bytes))


def validate_ulid(text: str) -> str:
    """Return the id unchanged, or raise id_invalid: 26 upper-case characters, no alias, no overflow."""
    if type(text) is not str or _FORM.fullmatch(text) is None:
        raise error("id_invalid", id=text, reason="it is not a ULID of 26 upper-case characters")
    return text


def ulid_ms(ulid: str) -> int:
    """Return the milliseconds since 1970 inside an id."""
    return _number(ulid) >> _RANDOM_BITS


class UlidGenerator:
    """Generates increasing ids for one process; thread-safe."""

    def __init__(
        self,
        clock: Clock,
        previous: str | None = None,
        random_source: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock = clock
        self._last = -1 if previous is None else _number(previous)
        self._random_source = random_source
        self._lock = threading.Lock()

    def mint(self) -> str:
        """Return an id greater than every previous one."""
        now_ms = self._clock.wall_ns() // MILLISECOND_NS
        with self._lock:
            self._last = _next_number(self._last, now_ms, self._random_source(RANDOM_BYTES))
            return _text(self._last)


def _next_number(last: int, now_ms: int, random_bytes: bytes) -> int:
    if now_ms > last >> _RANDOM_BITS:
        if now_ms > _MS_MAX:
            raise error("value_invalid", name="now_ms", reason="it does not fit the 48 bits of a ULID")
        return now_ms << _RANDOM_BITS | int.from_bytes(random_bytes[:RANDOM_BYTES], "big")
    number = last + 1
    if number >> 128:
        raise error("value_invalid", name="previous", reason="no greater ULID exists")
    return number


def _number(ulid: str) -> int:
    return int(validate_ulid(ulid).translate(_TO_INT), 32)


@lru_cache(maxsize=16)
def _time_text(now_ms: int) -> str:
    """Return the first characters of every id of a millisecond; text order is number order, beyond 48 bits too."""
    return _text(now_ms << _RANDOM_BITS)[:_TIME_CHARS] if now_ms <= _MS_MAX else "~"


def _text(number: int) -> str:
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
