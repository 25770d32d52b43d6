"""Rules of the Pinch wire: addresses, the bytes that agents sign, and delivery ids.

An address is `pinch:` base58(public key || first four bytes of its SHA-256) `@` relay host. Only its form is checked
here, not whether the key may sign. If you change the signed bytes, every agent's signature is void
(docs/protocol.md). Pinch message ids are unique per sender only and may return after the queue's TTL; the delivery
id (32 bytes, from sender, message id and time of acceptance) is unique in queues and records.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import PINCH_BURST, PINCH_HOST_MAX_CHARS, PINCH_RATE_PER_S
from posthouse.model.setting import Setting

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_DIGITS = {letter: number for number, letter in enumerate(_ALPHABET)}


def encode_base58(data: bytes) -> str:
    """Return bytes as base58."""
    zeros = len(data) - len(data.lstrip(b"\0"))
    number = int.from_bytes(data, "big")
    letters: list[str] = []
    while number:
        number, digit = divmod(number, 58)
        letters.append(_ALPHABET[digit])
    return _ALPHABET[0] * zeros + "".join(reversed(letters))


def decode_base58(text: str) -> bytes:
    """Return the bytes of a base58 text, or raise ValueError."""
    number = 0
    for letter in text:
        digit = _DIGITS.get(letter)
        if digit is None:
            raise ValueError(f"{letter!r} is not a base58 digit")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip(_ALPHABET[0]))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")


SCHEME = "pinch:"
KEY_BYTES = 32
_CHECKSUM_BYTES = 4
_ADDRESS = re.compile(r"pinch:([1-9A-HJ-NP-Za-km-z]+)@(.+)")
_MAX_DIGITS = 50  # of 36 bytes; bounds the arithmetic on text from any peer
_HOST = re.compile(rf"[!-?A-~]{{1,{PINCH_HOST_MAX_CHARS}}}")  # printable ASCII without space and @


class PinchAddress(NamedTuple):
    """The parts of an address."""

    key: bytes
    host: str


def address_of(key: bytes, host: str) -> str:
    """Return the address of a public key of 32 bytes at a relay."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a public key has {KEY_BYTES} bytes, not {len(key)}")
    return f"{SCHEME}{encode_base58(key + _checksum(key))}@{host}"


def parse_address(text: str) -> PinchAddress:
    """Return the parts of an address, or raise pinch_address_invalid."""
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise _invalid(text, "it is not pinch:KEY@HOST")
    if len(found[1]) > _MAX_DIGITS:
        raise _invalid(text, "its key is too long")
    data = decode_base58(found[1])
    if len(data) != KEY_BYTES + _CHECKSUM_BYTES:
        raise _invalid(text, f"its key decodes to {len(data)} bytes, not {KEY_BYTES + _CHECKSUM_BYTES}")
    key = data[:KEY_BYTES]
    if data[KEY_BYTES:] != _checksum(key):
        raise _invalid(text, "its checksum is wrong")
    return PinchAddress(key, found[2])


def validate_host(host: str) -> str:
    """Return the host name of a relay unchanged, or raise pinch_host_invalid."""
    if _HOST.fullmatch(host) is None:
        raise error("pinch_host_invalid", host=host[:80], most=PINCH_HOST_MAX_CHARS)
    return host


def _checksum(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:_CHECKSUM_BYTES]


def _invalid(text: str, reason: str) -> PosthouseError:
    return error("pinch_address_invalid", address=text[:80], reason=reason)


_AUTH_DOMAIN = b"pinch-auth-v1"


def auth_bytes(host: str, nonce: bytes) -> bytes:
    """Return the bytes that an agent signs to prove its key to the relay with this host name."""
    return b"\0".join((_AUTH_DOMAIN, host.encode(), nonce))


def confirm_bytes(message_id: bytes, timestamp: int) -> bytes:
    """Return the bytes that a reader signs to confirm a message at a time in milliseconds."""
    return message_id + timestamp.to_bytes(8, "big", signed=True)


def delivery_id(sender: str, message_id: bytes, accepted_at_ns: int, number: int = 0) -> bytes:
    """Return the id; `number` distinguishes envelopes without a message id that were accepted at the same time."""
    digest = hashlib.sha256()
    for part in (sender.encode(), message_id, b"%d" % accepted_at_ns, b"%d" % number):
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()


MESSAGE_TYPE_MESSAGE = 4  # as pinch.proto numbers it; a test compares


def is_confirmed_by_reader(message_type: int, has_message_id: bool) -> bool:
    """Return True for a message, which its reader confirms by id; a control envelope is complete once it was read."""
    return message_type == MESSAGE_TYPE_MESSAGE and has_message_id


def overtaking_controls(waiting: Iterable[tuple[int, int, bool]]) -> list[int]:
    """Return the control envelopes that may be sent before the messages that wait, in order.

    `waiting` is (seq, sender, is a message) in the order of the queue. A control envelope overtakes messages of other
    senders only, because it changes what its sender's messages mean.
    """
    controls: list[int] = []
    senders_with_messages: set[int] = set()
    for seq, sender, is_message in waiting:
        if is_message:
            senders_with_messages.add(sender)
        elif sender not in senders_with_messages:
            controls.append(seq)
    return controls


class SentMessage(NamedTuple):
    """A message that was sent on a connection and is not confirmed; times are seconds of one steady clock."""

    seq: int
    written_s: float


def read_by_close(sent: Iterable[SentMessage], closed_s: float, round_trip_s: float | None) -> list[int]:
    """Return the messages that a clean close proves read: those written a round trip before the close arrived.

    A younger message may have crossed the close on the wire. Without a known round trip a close proves nothing.
    """
    if round_trip_s is None:
        return []
    return [each.seq for each in sent if closed_s - each.written_s >= round_trip_s]


def sent_without_progress(sent: Iterable[SentMessage], *, has_confirmed: bool) -> list[int]:
    """Return the messages that count a delivery without progress; any confirm on the connection is progress for all."""
    return [] if has_confirmed else [each.seq for each in sent]


#: part of the registry in posthouse.model.settings
PINCH_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "relay.pinch_host", str, None, "Host name of this relay in Pinch addresses; setting it enables the Pinch wire."
    ),
    Setting(
        "relay.pinch_rate", float, PINCH_RATE_PER_S, "Steady rate of Pinch envelopes per address.", "1/s", 0.001, 1e6
    ),
    Setting(
        "relay.pinch_burst",
        int,
        PINCH_BURST,
        "Maximum burst of Pinch envelopes per address.",
        "envelopes",
        1,
        1_000_000,
    ),
    Setting(
        "relay.pinch_origins",
        str,
        None,
        "Origins or hosts, with *, whose web pages may use the Pinch wire; separated by commas.",
    ),
)
