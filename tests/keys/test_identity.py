"""Node keys and node ids: one spelling, sound points only, and a secret that does not leak."""

from __future__ import annotations

import copy
import pickle

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from posthouse.keys import NodeKey, node_id, public_key, verify
from tests.keys import edwards
from tests.keys.refusal import refused

KEY = NodeKey(bytes(range(32)))
seeds = st.binary(min_size=32, max_size=32)


@given(seeds)
@settings(max_examples=30)
def test_node_id_and_public_key_lead_to_each_other(seed: bytes) -> None:
    key = NodeKey(seed)
    assert key.node == "ed25519:" + key.public.hex()
    assert node_id(key.public) == key.node
    assert public_key(key.node) == key.public


def test_the_same_seed_gives_the_same_node_and_new_keys_differ() -> None:
    assert NodeKey(bytes(range(32))).node == KEY.node
    assert NodeKey.generate().node != NodeKey.generate().node


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_seed_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        NodeKey(bytes(length))


@pytest.mark.parametrize(
    "spelling",
    [
        KEY.node.upper(),
        "ed25519:" + KEY.public.hex().upper(),
        "ED25519:" + KEY.public.hex(),
        KEY.public.hex(),
        KEY.node[:-1],
        KEY.node + "0",
        KEY.node + "\n",
        " " + KEY.node,
        KEY.node.replace("ed25519:", "ed25519::"),
        "ed25519:" + "٣" * 64,
        "",
    ],
)
def test_other_spellings_of_a_node_id_are_refused(spelling: str) -> None:
    with refused("node_id_invalid"):
        public_key(spelling)


def test_there_are_eight_points_of_small_order_in_fourteen_encodings() -> None:
    assert len(set(edwards.torsion())) == 8
    assert len(edwards.torsion_encodings()) == 14


@pytest.mark.parametrize("encoding", sorted(edwards.torsion_encodings()), ids=bytes.hex)
def test_every_encoding_of_a_small_order_point_is_refused(encoding: bytes) -> None:
    with refused("node_id_invalid"):
        node_id(encoding)
    with refused("node_id_invalid"):
        public_key("ed25519:" + encoding.hex())


def test_one_forgery_fits_every_message_under_a_small_order_key_and_is_refused_here() -> None:
    """The control: the bare equation accepts what the check is there to refuse."""
    neutral = edwards.encode(edwards.NEUTRAL)
    forged = edwards.encode(edwards.multiply(12345, edwards.base_point())) + (12345).to_bytes(32, "little")
    for message in (b"pay Alice", b"pay Mallory"):
        assert edwards.lax_verify(neutral, message, forged)
        with pytest.raises(BadSignatureError):
            crypto_sign_open(forged + message, neutral)
        with refused("node_id_invalid"):
            verify("ed25519:" + neutral.hex(), message, forged.hex())


def test_a_key_with_a_small_order_part_is_refused() -> None:
    sound = edwards.decode(KEY.public)
    assert edwards.encode(sound) == KEY.public
    for small in edwards.torsion()[1:]:
        with refused("node_id_invalid", "prime-order"):
            node_id(edwards.encode(edwards.add(sound, small)))


def test_y_beyond_the_field_is_refused_as_not_canonical() -> None:
    for y in range(edwards.P, 2**255):
        with refused("node_id_invalid", "y is not below p"):
            node_id(y.to_bytes(32, "little"))


def test_bytes_that_are_no_point_are_refused() -> None:
    off_curve = next(y for y in range(2, 50) if edwards.from_y(y) is None)
    with refused("node_id_invalid", "prime-order"):
        node_id(off_curve.to_bytes(32, "little"))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_public_key_of_another_length_is_refused(length: int) -> None:
    with refused("node_id_invalid", "not 32"):
        node_id(bytes(length))


def test_the_secret_shows_in_no_representation() -> None:
    for text in (repr(KEY), str(KEY), f"{KEY}", repr([KEY]), repr({"key": KEY})):
        assert KEY.reveal_seed().hex() not in text
        assert repr(KEY.reveal_seed())[2:-1] not in text
    assert repr(KEY) == f"NodeKey('{KEY.node}')"
    assert not hasattr(KEY, "__dict__")


def test_a_key_cannot_be_pickled_copied_or_encoded() -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy, msgspec.json.encode, msgspec.msgpack.encode):
        with pytest.raises(TypeError):
            attempt(KEY)
