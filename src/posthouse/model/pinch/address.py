"""Pinch addresses: `pinch:` base58(public key || first four bytes of its SHA-256) `@` relay host.

The checksum finds typing errors; the key in the address is the identity, so whoever has the address can check what
its owner signed. Only the form is judged here, not whether the key may sign.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import PINCH_HOST_MAX_CHARS
from posthouse.model.pinch.base58 import decode_base58, encode_base58

SCHEME = "pinch:"
KEY_BYTES = 32
_CHECKSUM_BYTES = 4
_ADDRESS = re.compile(r"pinch:([1-9A-HJ-NP-Za-km-z]+)@(.+)")
_MOST_DIGITS = 50  # of 36 bytes; bounds the arithmetic on a text that anybody may send
_HOST = re.compile(rf"[!-?A-~]{{1,{PINCH_HOST_MAX_CHARS}}}")  # printable ASCII but the blank and @


class PinchAddress(NamedTuple):
    """What an address says."""

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
    if len(found[1]) > _MOST_DIGITS:
        raise _invalid(text, "its key is too long")
    data = decode_base58(found[1])
    if len(data) != KEY_BYTES + _CHECKSUM_BYTES:
        raise _invalid(text, f"its key decodes to {len(data)} bytes, not {KEY_BYTES + _CHECKSUM_BYTES}")
    key = data[:KEY_BYTES]
    if data[KEY_BYTES:] != _checksum(key):
        raise _invalid(text, "its checksum is wrong")
    return PinchAddress(key, found[2])


def validate_host(host: str) -> str:
    """Return the name of a relay as it stands in addresses, or raise pinch_host_invalid."""
    if _HOST.fullmatch(host) is None:
        raise error("pinch_host_invalid", host=host[:80], most=PINCH_HOST_MAX_CHARS)
    return host


def _checksum(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:_CHECKSUM_BYTES]


def _invalid(text: str, reason: str) -> PosthouseError:
    return error("pinch_address_invalid", address=text[:80], reason=reason)
