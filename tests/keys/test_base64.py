"""Base64 with one spelling per value."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.keys.ssh import decode_base64, encode_base64


@given(st.binary(max_size=100))
@settings(max_examples=50)
def test_bytes_come_back(data: bytes) -> None:
    assert decode_base64(encode_base64(data)) == data


def test_stray_bits_are_what_the_stdlib_would_let_through() -> None:
    assert base64.b64decode("QR==", validate=True) == base64.b64decode("QQ==", validate=True) == b"A"


@pytest.mark.parametrize(
    "text", ["QR==", "QQ=", "QQ", "Q===", "=", "QQ==\n", "QQ== ", " QQ==", "QQ==QQ==", "Q_==", "é", "QQ\n=="]
)
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="base64"):
        decode_base64(text)
