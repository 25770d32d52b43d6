"""Base58 with the Bitcoin alphabet: bytes as text without characters that look alike.

A leading zero byte is one leading `1`, so the text and the bytes determine each other. No checksum is part of it.
"""

from __future__ import annotations

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
            raise ValueError(f"{letter!r} is no base58 digit")
        number = number * 58 + digit
    zeros = len(text) - len(text.lstrip(_ALPHABET[0]))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")
