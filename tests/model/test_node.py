from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import Refused
from posthouse.model.node import (
    is_key_digits,
    is_node_id,
    looks_like_key,
    name_skeleton,
    node_from_hex,
    node_from_key,
    node_hex,
    node_key,
    validate_member_name,
    validate_mesh_name,
    validate_node_id,
)


@given(st.binary(min_size=32, max_size=32))
def test_a_key_and_its_node_id_give_each_other(key: bytes) -> None:
    node = node_from_key(key)
    assert is_node_id(node)
    assert node_key(node) == key
    assert node_from_hex(node_hex(node)) == node


@pytest.mark.parametrize(
    "node",
    [
        "",
        "ed25519:",
        "ed25519:" + "A" * 64,
        "Ed25519:" + "a" * 64,
        "ed25519:" + "a" * 63,
        "ed25519:" + "a" * 65,
        "a" * 64,
        "ed25519:" + "g" * 64,
        "ed25519:" + "a" * 64 + "\n",
        " ed25519:" + "a" * 64,
        "ed25519:" + "٣" * 64,
    ],
)
def test_other_spellings_are_refused_not_normalised(node: str) -> None:
    with pytest.raises(Refused) as caught:
        validate_node_id(node)
    assert caught.value.code == "node_id_invalid"


def test_keys_and_digits_of_another_length_are_refused() -> None:
    with pytest.raises(Refused):
        node_from_key(b"x" * 31)
    for digits in ("a" * 63, "A" * 64):
        with pytest.raises(Refused):
            node_from_hex(digits)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", "a\n", "é", "a" * 65])
def test_mesh_and_member_names_are_one_token(name: str) -> None:
    with pytest.raises(Refused, match="mesh name"):
        validate_mesh_name(name)
    with pytest.raises(Refused, match="member name"):
        validate_member_name(name)
    assert validate_mesh_name("m" * 64)
    assert validate_member_name("Ada_1-x")


@pytest.mark.parametrize("name", ["deadbeef", "DEADBEEF", "12345678", "a" * 64, "ed25519-bob", "ED25519"])
def test_names_that_could_be_keys_or_their_beginning(name: str) -> None:
    assert looks_like_key(name)


@pytest.mark.parametrize("name", ["bob", "cafe", "1234567", "dead-beef", "deadbeeg", "planner-2", "x-ed25519"])
def test_names_that_are_not_taken_for_keys(name: str) -> None:
    assert not looks_like_key(name)


@pytest.mark.parametrize(
    ("one", "other"),
    [("bob", "BOB"), ("bob", "b0b"), ("bill", "b1ll"), ("bill", "BlIl"), ("a-b", "a_b"), ("OIL-1", "01l_i")],
)
def test_names_that_look_alike_have_one_skeleton(one: str, other: str) -> None:
    assert name_skeleton(one) == name_skeleton(other)


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", max_size=20))
def test_skeleton_is_its_own_skeleton(name: str) -> None:
    assert name_skeleton(name_skeleton(name)) == name_skeleton(name)


def test_digits_of_a_key_are_sixty_four() -> None:
    assert is_key_digits("0" * 64) and is_key_digits("aF" * 32)
    assert not is_key_digits("0" * 63) and not is_key_digits("g" * 64)
