"""The bytes that are signed, spelled out."""

from __future__ import annotations

import hashlib

import pytest

from posthouse.model.pinch import auth_bytes, confirm_bytes, delivery_id


def test_login_signs_domain_host_and_nonce() -> None:
    assert auth_bytes("relay.example", b"n" * 32) == b"pinch-auth-v1\x00relay.example\x00" + b"n" * 32


def test_confirm_signs_the_message_id_and_the_time_in_eight_bytes() -> None:
    assert confirm_bytes(b"abc", 0x0102030405060708) == b"abc\x01\x02\x03\x04\x05\x06\x07\x08"
    assert confirm_bytes(b"", -1) == b"\xff" * 8


@pytest.mark.parametrize("other", [("b", b"c", 1, 0), ("a", b"d", 1, 0), ("a", b"c", 2, 0), ("a", b"c", 1, 1)])
def test_delivery_id_depends_on_each_part(other: tuple[str, bytes, int, int]) -> None:
    assert delivery_id(*other) != delivery_id("a", b"c", 1, 0)


def test_delivery_id_keeps_parts_apart() -> None:
    assert delivery_id("ab", b"c", 1) != delivery_id("a", b"bc", 1)
    spelled = hashlib.sha256(b"\0\0\0\1a\0\0\0\1c\0\0\0\x011\0\0\0\x010").digest()
    assert delivery_id("a", b"c", 1) == spelled
