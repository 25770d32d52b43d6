"""Batch signatures: every event of a batch proves itself alone, and nothing else passes."""

from __future__ import annotations

from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.keys import NodeKey, signature, verify
from posthouse.keys.batch_signature import read_batch_signature, sign_batch
from posthouse.keys.signature import is_whole_batch
from posthouse.model.errors import PosthouseError
from posthouse.model.merkle_tree import path_length, root, root_and_paths, root_of_path
from tests.keys import vectors
from tests.keys.refusal import refused

KEY = NodeKey(b"\x07" * 32)
VECTORS = vectors.read("batch")


def signed(count: int, key: NodeKey = KEY) -> list[tuple[bytes, str]]:
    messages = [f"message {number}".encode() for number in range(count)]
    return list(zip(messages, sign_batch(key, [blake3(each).hexdigest() for each in messages]), strict=True))


def rfc_root(leaves: list[bytes]) -> bytes:
    """Return the root as RFC 6962 defines it: split at the largest power of two below the size."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return blake3(b"\x01" + rfc_root(leaves[:half]) + rfc_root(leaves[half:])).digest()


@given(st.integers(min_value=1, max_value=200))
@settings(max_examples=40)
def test_tree_has_the_shape_of_rfc_6962_and_every_path_leads_to_its_root(size: int) -> None:
    leaves = [blake3(bytes((number,))).digest() for number in range(size)]
    assert root(leaves) == rfc_root(leaves)
    for index, path in enumerate(root_and_paths(leaves)[1]):
        assert len(path) == 32 * path_length(index, size)
        assert root_of_path(leaves[index], index, size, path) == root(leaves)


@pytest.mark.parametrize("count", range(2, 65))
def test_every_event_of_a_batch_verifies_alone(count: int) -> None:
    for message, sig in signed(count):
        verify(KEY.node, message, sig)


@given(st.integers(min_value=2, max_value=64), st.data())
@settings(max_examples=60)
def test_any_changed_byte_is_refused(count: int, data: st.DataObject) -> None:
    message, sig = data.draw(st.sampled_from(signed(count)))
    place = data.draw(st.integers(min_value=3, max_value=len(sig) - 1))
    letter = data.draw(st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"))
    altered = sig[:place] + letter + sig[place + 1 :]
    if altered != sig:
        with pytest.raises(PosthouseError) as refusal:
            verify(KEY.node, message, altered)
        assert refusal.value.code in ("signature_invalid", "signature_malformed")


@pytest.mark.parametrize("count", [0, 1, 65])
def test_batch_has_2_to_64_events(count: int) -> None:
    with pytest.raises(ValueError, match="2 to 64"):
        sign_batch(KEY, ["00" * 32] * count)


def test_signature_over_the_root_is_verified_once_for_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    monkeypatch.setattr(signature, "_check", lambda *given: checked.append(given))
    signature._check_batch.cache_clear()
    for message, sig in signed(64):
        verify(KEY.node, message, sig)
    assert len(checked) == 1
    signature._check_batch.cache_clear()


@pytest.mark.parametrize("count", [2, 3, 63, 64])
def test_whole_batch_is_verified_with_one_tree(count: int) -> None:
    ids = [blake3(message).hexdigest() for message, _sig in signed(count)]
    signatures = [sig for _message, sig in signed(count)]
    other = NodeKey(b"\x08" * 32)
    assert is_whole_batch(KEY.node, ids, signatures)
    assert not is_whole_batch(other.node, ids, signatures)
    assert not is_whole_batch(KEY.node, ids[::-1], signatures)
    assert not is_whole_batch(KEY.node, ids[:-1], signatures[:-1])
    assert not is_whole_batch(KEY.node, ids, sign_batch(other, ids))
    assert not is_whole_batch(KEY.node, ids, [signatures[0], *["b1."] * (count - 1)])


@pytest.mark.parametrize("first", ["", "b1.", "00" * 64, "b2.AA"])
def test_batch_that_does_not_begin_with_a_batch_signature_is_not_whole(first: str) -> None:
    (_, second) = (sig for _message, sig in signed(2))
    assert not is_whole_batch(KEY.node, ["00" * 32] * 2, [first, second])


def test_refused_batch_is_checked_again_each_time() -> None:
    other = NodeKey(b"\x08" * 32)
    for message, sig in signed(3) * 2:
        with refused("signature_invalid"):
            verify(other.node, message, sig)


@pytest.mark.parametrize("batch", VECTORS["valid"], ids=lambda batch: str(batch["size"]))
def test_vectors_are_what_a_batch_signs(batch: dict[str, Any]) -> None:
    key = NodeKey(bytes.fromhex(VECTORS["seed"]))
    assert key.node == VECTORS["pubkey"]
    ids = [blake3(f"event {number}".encode()).hexdigest() for number in range(batch["size"])]
    made = sign_batch(key, ids)
    for vector in batch["signatures"]:
        assert vector["id"] == ids[vector["index"]]
        assert vector["sig"] == made[vector["index"]]
        parts = read_batch_signature(vector["sig"])
        assert parts.signed_bytes(bytes.fromhex(vector["id"])).hex() == batch["signed"]
        assert batch["signed"].endswith(batch["root"])
        verify(key.node, vector["canonical"].encode(), vector["sig"])


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: str(vector["why"]))
def test_vectors_that_must_be_refused_are(vector: dict[str, Any]) -> None:
    with refused(vector["code"]):
        verify(VECTORS["pubkey"], vector["canonical"].encode(), vector["sig"])
