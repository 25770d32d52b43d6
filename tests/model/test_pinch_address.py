"""Pinch addresses: known ones, the way there and back, and everything that is none."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import PosthouseError
from posthouse.model.pinch import address_of, decode_base58, encode_base58, parse_address, validate_host

VECTORS = {
    "4cb5abf6ad79fbf5abbccafcc269d85cd2651ed4b885b5869f241aedf0a5ba29": (
        "anSpcKpdMpR5GgdWktTxJHrow4AapjhmPGBfj3F1qr3HEbMcn"
    ),
    "e734ea6c2b6257de72355e472aa05a4c487e6b463c029ed306df2f01b5636b58": (
        "2kpsAVWeesP916eiCW6FxmgGQcrsvyQSp3JFsdjExT3sS8b2Nz"
    ),
    "ff57575dc7af8bfc4d0837cc1ce2017b686a88145dc5579a958e3462fe9a908e": (
        "2wTMAXNcBzkfwvmYVyWVNpLkMdTCzdmYrAZkREHx8EVaL6L3ur"
    ),
}
KEY, TEXT = next(iter(VECTORS.items()))


@pytest.mark.parametrize(("key", "text"), VECTORS.items())
def test_address_of_a_known_key(key: str, text: str) -> None:
    address = f"pinch:{text}@relay.example"
    assert address_of(bytes.fromhex(key), "relay.example") == address
    assert parse_address(address) == (bytes.fromhex(key), "relay.example")


@given(st.binary(min_size=32, max_size=32), st.text("abc.-:0123456789", min_size=1, max_size=20))
def test_address_says_key_and_host(key: bytes, host: str) -> None:
    assert parse_address(address_of(key, host)) == (key, host)


@given(st.binary(max_size=40))
def test_base58_keeps_every_byte(data: bytes) -> None:
    text = encode_base58(data)
    assert decode_base58(text) == data
    assert len(text) - len(text.lstrip("1")) == len(data) - len(data.lstrip(b"\0"))


@given(st.integers(0, 48), st.sampled_from("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"))
def test_one_wrong_character_is_found(place: int, letter: str) -> None:
    changed = TEXT[:place] + letter + TEXT[place + 1 :]
    if changed == TEXT:
        return
    with pytest.raises(PosthouseError) as caught:
        parse_address(f"pinch:{changed}@relay.example")
    assert caught.value.code == "pinch_address_invalid"


def test_checksum_is_the_first_four_bytes_of_the_digest() -> None:
    key = bytes.fromhex(KEY)
    assert decode_base58(TEXT) == key + hashlib.sha256(key).digest()[:4]


@pytest.mark.parametrize(
    "text",
    [
        "",
        TEXT,
        f"pinch:{TEXT}",
        f"pinch:{TEXT}@",
        f"PINCH:{TEXT}@relay.example",
        f" pinch:{TEXT}@relay.example",
        f"pinch:{TEXT}@relay.example\n",
        f"pinch:0{TEXT[1:]}@relay.example",
        f"pinch:1{TEXT}@relay.example",
        f"pinch:{TEXT[:-1]}@relay.example",
        f"pinch:{TEXT}{TEXT}@relay.example",
        "pinch:" + "1" * 36 + "@relay.example",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(PosthouseError) as caught:
        parse_address(text)
    assert caught.value.code == "pinch_address_invalid"


@pytest.mark.parametrize("host", ["relay.example", "localhost", "127.0.0.1:7420", "[::1]:80", "a"])
def test_host_may_stand_in_an_address(host: str) -> None:
    assert validate_host(host) == host


@pytest.mark.parametrize("host", ["", "a b", "a@b", "a\n", "é", "a\0", "x" * 256])
def test_host_that_cannot_stand_in_an_address_is_refused(host: str) -> None:
    with pytest.raises(PosthouseError) as caught:
        validate_host(host)
    assert caught.value.code == "pinch_host_invalid"
