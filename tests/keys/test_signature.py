"""Native signatures, and verify as the one door for both forms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.keys import NodeKey, sign_native, sign_sshsig, signature, verify
from tests.keys.edwards import NEUTRAL, ORDER, lax_verify, sign_oddly, torsion
from tests.keys.refusal import refused

KEY = NodeKey(b"\x07" * 32)
OTHER = NodeKey(b"\x08" * 32)
messages = st.binary(max_size=300)


@given(st.binary(min_size=32, max_size=32), messages)
@settings(max_examples=40)
def test_what_a_key_signs_verifies_in_every_form(seed: bytes, message: bytes) -> None:
    key = NodeKey(seed)
    verify(key.node, message, sign_native(key, message))
    verify(key.node, message, sign_sshsig(key, message))
    verify(key.node, message, sign_sshsig(key, message, "sha256"))


def test_signing_is_deterministic() -> None:
    assert sign_native(KEY, b"text") == sign_native(KEY, b"text")
    assert sign_sshsig(KEY, b"text") == sign_sshsig(KEY, b"text")


@given(messages, st.integers(min_value=0, max_value=511))
@settings(max_examples=60)
def test_any_flipped_bit_of_a_native_signature_is_refused(message: bytes, bit: int) -> None:
    raw = bytearray.fromhex(sign_native(KEY, message))
    raw[bit // 8] ^= 1 << bit % 8
    with refused("signature_invalid"):
        verify(KEY.node, message, raw.hex())


@given(st.binary(min_size=1, max_size=100), st.data(), st.sampled_from(["native", "sha256", "sha512"]))
@settings(max_examples=60)
def test_any_flipped_bit_of_the_message_is_refused(message: bytes, data: st.DataObject, form: str) -> None:
    signature = _sign(message, form)
    altered = bytearray(message)
    bit = data.draw(st.integers(min_value=0, max_value=8 * len(message) - 1))
    altered[bit // 8] ^= 1 << bit % 8
    with refused("signature_invalid"):
        verify(KEY.node, bytes(altered), signature)


def _sign(message: bytes, form: str) -> str:
    hashes: dict[str, signature.HashName] = {"sha256": "sha256", "sha512": "sha512"}
    return sign_sshsig(KEY, message, hashes[form]) if form in hashes else sign_native(KEY, message)


def test_a_signature_of_another_key_is_refused() -> None:
    with refused("signature_invalid") as errors:
        verify(OTHER.node, b"text", sign_native(KEY, b"text"))
    assert OTHER.node in str(errors[0])


def test_a_second_spelling_of_the_scalar_is_refused() -> None:
    """S + L satisfies the equation too; taking it would give one message two signatures from one."""
    raw = bytes.fromhex(sign_native(KEY, b"text"))
    larger = int.from_bytes(raw[32:], "little") + ORDER
    second = raw[:32] + larger.to_bytes(32, "little")
    assert lax_verify(KEY.public, b"text", second)
    with refused("signature_invalid"):
        verify(KEY.node, b"text", second.hex())


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "00" * 63,
        "00" * 65,
        sign_native(KEY, b"text").upper(),
        sign_native(KEY, b"text") + "\n",
        " " + sign_native(KEY, b"text"),
        "zz" * 64,
        "٣" * 128,
        "-----BEGIN PGP SIGNATURE-----",
    ],
)
def test_text_of_neither_form_is_refused_as_malformed(signature: str) -> None:
    with refused("signature_malformed", "neither"):
        verify(KEY.node, b"text", signature)


def test_an_unsound_node_id_verifies_nothing() -> None:
    with refused("node_id_invalid"):
        verify("ed25519:" + "01" + "00" * 31, b"text", sign_native(KEY, b"text"))


def test_a_native_signature_does_not_pass_for_an_ssh_one() -> None:
    """The bytes under the two forms differ, so neither can be turned into the other."""
    raw = bytes.fromhex(sign_native(KEY, b"text"))
    with refused("signature_invalid"):
        verify(KEY.node, b"text", signature.write_sshsig(KEY.public, "sha512", raw))


def test_a_signature_that_fits_only_with_the_cofactor_is_refused() -> None:
    """Implementations that multiply by eight accept these; all nodes have to agree on one rule."""
    seed = KEY.reveal_seed()
    verify(KEY.node, b"text", sign_oddly(seed, b"text", 777, NEUTRAL).hex())
    for small in torsion()[1:]:
        with refused("signature_invalid"):
            verify(KEY.node, b"text", sign_oddly(seed, b"text", 777, small).hex())


def test_a_signature_whose_r_has_small_order_is_refused() -> None:
    neutral_r = sign_oddly(KEY.reveal_seed(), b"text", 0, NEUTRAL)
    assert lax_verify(KEY.public, b"text", neutral_r)
    with refused("signature_invalid"):
        verify(KEY.node, b"text", neutral_r.hex())
