from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import Refused
from posthouse.model.node import (
    is_node_id,
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
