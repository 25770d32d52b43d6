"""Find what two ordered sets of keys do not share by exchanging fingerprints of ranges: kilobytes for millions of keys.

A key is the creation time and the id of an event as bytes, so keys order alike on every relay. A message cuts all keys
into ranges and says one thing about each: skip it, a fingerprint, the ids in it, or the difference found in it. A side
answers a fingerprint that is not its own with fingerprints of parts of that range, or with its ids if they are few, and
a list of ids with the difference. The two sides answer each other until a message needs no answer. Pure: it knows
neither stores nor networks. If you change the encoding: 1. VERSION, 2. docs/protocol.md.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from blake3 import blake3

VERSION = 1
ID_BYTES = 32
FINGERPRINT_BYTES = 16
BUCKETS = 16
_FEW = 2 * BUCKETS  # ids that are listed instead of cut into parts
MESSAGE_BYTES = 256 * 1024  # of one answer; the rest is one more range that the next answer looks at
_END = b""  # the bound above all keys
_MODULUS = 1 << (8 * ID_BYTES)


class Mode(enum.IntEnum):
    """What a message says about a range."""

    SKIP = 0
    FINGERPRINT = 1
    IDS = 2
    DIFFERENCE = 3


class RangeNote(NamedTuple):
    """One range of a message: the keys from the bound before it up to, not including, its own bound."""

    #: a prefix of a key; empty: the end of all keys
    bound: bytes
    mode: Mode
    #: the fingerprint, or ids one after the other
    payload: bytes = b""
    #: of a difference: ids that only the other side has; `payload` has those that only this side has
    missing: bytes = b""


Message = list[RangeNote]


class Difference(NamedTuple):
    """Ids that only one of two sides has."""

    here: list[bytes]
    there: list[bytes]


def key_of(created_at_ns: int, event_id: bytes) -> bytes:
    """Return the key of an event; keys compare as (created_at_ns, id) do."""
    return created_at_ns.to_bytes(8, "big") + event_id


def fingerprint(keys: Iterable[bytes]) -> bytes:
    """Return the fingerprint of a set of keys: a digest of the sum of their ids and of their number."""
    total = count = 0
    for key in keys:
        total += int.from_bytes(key[8:], "little")
        count += 1
    digest = blake3((total % _MODULUS).to_bytes(ID_BYTES, "little") + count.to_bytes(8, "little"))
    return digest.digest(FINGERPRINT_BYTES)


def first_message() -> Message:
    """Return the message that makes a side describe everything it has."""
    return [RangeNote(_END, Mode.FINGERPRINT, bytes(FINGERPRINT_BYTES))]


def answer(keys: Sequence[bytes], message: Message, max_bytes: int = MESSAGE_BYTES) -> Message:
    """Return the answer of a side with these sorted keys to a message."""
    notes: Message = []
    low, size = 0, 0
    for note in message:
        high = _index(keys, note.bound, low)
        if size > max_bytes:
            notes.append(RangeNote(_END, Mode.FINGERPRINT, fingerprint(keys[low:])))
            return notes
        for made in _answer_range(keys, low, high, note):
            if made.mode is Mode.SKIP and notes and notes[-1].mode is Mode.SKIP:
                notes.pop()
            notes.append(made)
            size += len(made.bound) + len(made.payload) + len(made.missing)
        low = high
    return notes


def is_settled(message: Message) -> bool:
    """Return True if nothing is left to answer."""
    return not any(note.mode in (Mode.FINGERPRINT, Mode.IDS) for note in message)


def difference_of(message: Message) -> Difference:
    """Return the differences that a message reports; `here` is the side that wrote it."""
    here: list[bytes] = []
    there: list[bytes] = []
    for note in message:
        if note.mode is Mode.DIFFERENCE:
            here += split_ids(note.payload)
            there += split_ids(note.missing)
    return Difference(here, there)


def split_ids(data: bytes) -> list[bytes]:
    """Return the consecutive ids in `data`."""
    return [data[at : at + ID_BYTES] for at in range(0, len(data), ID_BYTES)]


def _answer_range(keys: Sequence[bytes], low: int, high: int, note: RangeNote) -> Iterator[RangeNote]:
    if note.mode is Mode.FINGERPRINT and fingerprint(keys[low:high]) != note.payload:
        yield from _describe(keys, low, high, note.bound)
    elif note.mode is Mode.IDS:
        own, other = {key[8:] for key in keys[low:high]}, set(split_ids(note.payload))
        yield RangeNote(note.bound, Mode.DIFFERENCE, _join(own - other), _join(other - own))
    else:
        yield RangeNote(note.bound, Mode.SKIP)


def _describe(keys: Sequence[bytes], low: int, high: int, bound: bytes) -> Iterator[RangeNote]:
    """Yield the ids of a range if they are few, else fingerprints of its parts."""
    count = high - low
    if count <= _FEW:
        yield RangeNote(bound, Mode.IDS, b"".join([key[8:] for key in keys[low:high]]))
        return
    for bucket in range(BUCKETS):
        start, end = low + count * bucket // BUCKETS, low + count * (bucket + 1) // BUCKETS
        upper = bound if bucket == BUCKETS - 1 else _bound_between(keys[end - 1], keys[end])
        yield RangeNote(upper, Mode.FINGERPRINT, fingerprint(keys[start:end]))


def _bound_between(before: bytes, after: bytes) -> bytes:
    """Return the shortest prefix of a key that lies above the key before it."""
    length = next(at for at, (left, right) in enumerate(zip(before, after, strict=True)) if left != right)
    return after[: length + 1]


def _index(keys: Sequence[bytes], bound: bytes, low: int) -> int:
    return len(keys) if bound == _END else max(low, bisect_left(keys, bound))


def _join(ids: set[bytes]) -> bytes:
    return b"".join(sorted(ids))


def encode_message(message: Message) -> bytes:
    """Return a message as bytes: the version, then bound, mode and payloads of each range, lengths as varints."""
    parts = [bytes([VERSION])]
    for note in message:
        parts += [_varint(len(note.bound)), note.bound, bytes([note.mode])]
        if note.mode is Mode.FINGERPRINT:
            parts.append(note.payload)
        elif note.mode is not Mode.SKIP:
            parts += [_varint(len(note.payload) // ID_BYTES), note.payload]
            if note.mode is Mode.DIFFERENCE:
                parts += [_varint(len(note.missing) // ID_BYTES), note.missing]
    return b"".join(parts)


def decode_message(data: bytes) -> Message:
    """Decode a message; raise ValueError if it is malformed."""
    reader = _Reader(data)
    if reader.take(1) != bytes([VERSION]):
        raise ValueError("a message of another version")
    message: Message = []
    while not reader.is_at_end:
        bound, mode = reader.take(reader.number()), Mode(reader.take(1)[0])
        payload = missing = b""
        if mode is Mode.FINGERPRINT:
            payload = reader.take(FINGERPRINT_BYTES)
        elif mode is not Mode.SKIP:
            payload = reader.take(reader.number() * ID_BYTES)
            missing = reader.take(reader.number() * ID_BYTES) if mode is Mode.DIFFERENCE else b""
        message.append(RangeNote(bound, mode, payload, missing))
    _check_order(message)
    return message


def _check_order(message: Message) -> None:
    """Refuse bounds that do not rise, or that do not cover every key."""
    bounds = [note.bound for note in message]
    if not bounds or bounds[-1] != _END or _END in bounds[:-1]:
        raise ValueError("the last range does not end at the end")
    if any(left >= right for left, right in pairwise(bounds[:-1])):
        raise ValueError("the ranges are not in order")


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(0x80 | (number & 0x7F))
        number >>= 7
    data.append(number)
    return bytes(data)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise ValueError("it ends too early")
        self._at += count
        return part

    def number(self) -> int:
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 35:
                raise ValueError("a number is too large")
