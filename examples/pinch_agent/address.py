"""Pinch addresses as an agent sees them: `pinch:` base58(key and the first four bytes of its SHA-256) `@` relay."""

from __future__ import annotations

import hashlib
import re

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_ADDRESS = re.compile(r"^pinch:([1-9A-HJ-NP-Za-km-z]+)@(.+)$")


def write_address(key: bytes, relay: str) -> str:
    """Return the address of a public key."""
    data = key + hashlib.sha256(key).digest()[:4]
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = _ALPHABET[digit] + text
    zeros = len(data) - len(data.lstrip(b"\0"))
    return f"pinch:{'1' * zeros}{text}@{relay}"


def read_key(address: str) -> bytes:
    """Return the public key in an address, or raise ValueError."""
    found = _ADDRESS.match(address)
    if found is None:
        raise ValueError(f"{address} is not an address")
    number = 0
    for letter in found[1]:
        number = number * 58 + _ALPHABET.index(letter)
    key = number.to_bytes(36, "big")[:32]
    if write_address(key, found[2]) != address:
        raise ValueError(f"{address} has a typing error")
    return key
