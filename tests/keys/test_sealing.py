"""Sealing: only the readers open it, whole or not at all, and the age program agrees."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.public import Box
from nacl.signing import SigningKey

from posthouse.keys import NodeKey, open_sealed, seal, write_public_line
from posthouse.keys.sealing import open_age, open_box, seal_age, seal_box, seal_box_with_nonce
from posthouse.keys.ssh import decode_base64, encode_base64
from posthouse.model.errors import Refused
from tests.keys.programs import needs_age, output, store_openssh
from tests.keys.refusal import refused

ALICE = NodeKey(b"\x0a" * 32)
BOB = NodeKey(b"\x0b" * 32)
CAROL = NodeKey(b"\x0c" * 32)
EVE = NodeKey(b"\x0e" * 32)
TEXT = "meet at the post house ☕".encode()
texts = st.binary(max_size=500)


@given(texts)
@settings(max_examples=30)
def test_a_box_opens_for_its_reader_and_for_its_sender(text: bytes) -> None:
    content = seal_box(ALICE, BOB.node, text)
    assert open_box(BOB, ALICE.node, content) == text
    assert open_box(ALICE, BOB.node, content) == text


@given(texts)
@settings(max_examples=10)
def test_age_opens_for_each_reader(text: bytes) -> None:
    content = seal_age([BOB.node, CAROL.node], text)
    assert open_age(BOB, content) == open_age(CAROL, content) == text


def test_sealing_twice_never_gives_the_same_content() -> None:
    assert len({seal_box(ALICE, BOB.node, TEXT) for _ in range(20)}) == 20


def test_a_box_opens_for_nobody_else() -> None:
    content = seal_box(ALICE, BOB.node, TEXT)
    for key, peer in ((EVE, ALICE), (EVE, BOB), (BOB, EVE)):
        with refused("sealed_unopened"):
            open_box(key, peer.node, content)


def test_age_opens_for_nobody_else_not_even_the_sender() -> None:
    content = seal_age([BOB.node, CAROL.node], TEXT)
    for key in (EVE, ALICE):
        with refused("sealed_unopened"):
            open_age(key, content)


@given(st.data())
@settings(max_examples=50)
def test_any_flipped_bit_of_a_box_is_refused(data: st.DataObject) -> None:
    raw = bytearray(decode_base64(seal_box_with_nonce(ALICE, BOB.node, TEXT, bytes(24))))
    bit = data.draw(st.integers(min_value=0, max_value=8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with refused("sealed_unopened"):
        open_box(BOB, ALICE.node, encode_base64(bytes(raw)))


SEALED = seal_age([BOB.node, CAROL.node], TEXT)
_BODY = range(SEALED.index("\n") + 1, SEALED.index("\n-----END"))


@given(st.sampled_from([at for at in _BODY if SEALED[at] not in "\n="]))
@settings(max_examples=50)
def test_any_other_digit_in_age_armor_is_refused(at: int) -> None:
    other = "A" if SEALED[at] != "A" else "B"
    with pytest.raises(Refused) as caught:
        open_age(BOB, SEALED[:at] + other + SEALED[at + 1 :])
    assert caught.value.code == "sealed_unopened"


@pytest.mark.parametrize("cut", [2, 30, 100])
def test_age_armor_that_was_cut_is_refused(cut: int) -> None:
    with refused("sealed_unopened"):
        open_age(BOB, SEALED[:-cut])


@pytest.mark.parametrize("content", ["", "plain text", "AAAA", "A" * 53, encode_base64(bytes(39)), "é" * 60])
def test_what_is_no_box_is_refused_as_malformed(content: str) -> None:
    with refused("sealed_malformed"):
        open_box(BOB, ALICE.node, content)


@pytest.mark.parametrize("content", ["", "plain text", "age-encryption.org/v1\n", " " + SEALED, SEALED + "é"])
def test_what_is_no_age_armor_is_refused_as_malformed(content: str) -> None:
    with refused("sealed_malformed"):
        open_age(BOB, content)


def test_a_box_is_the_one_of_nacl_with_converted_keys() -> None:
    sender = SigningKey(ALICE.reveal_seed()).to_curve25519_private_key()
    reader = SigningKey(BOB.reveal_seed()).verify_key.to_curve25519_public_key()
    nonce = bytes(range(24))
    expected = encode_base64(bytes(Box(sender, reader).encrypt(TEXT, nonce)))
    assert seal_box_with_nonce(ALICE, BOB.node, TEXT, nonce) == expected


def test_one_reader_gets_a_box_and_several_get_age() -> None:
    enc, content = seal(ALICE, [BOB.node], TEXT)
    assert enc == "box"
    assert open_sealed(BOB, ALICE.node, enc, content) == TEXT
    enc, content = seal(ALICE, [BOB.node, CAROL.node], TEXT)
    assert enc == "age"
    assert open_sealed(CAROL, ALICE.node, enc, content) == TEXT


def test_sealing_for_an_unsound_or_for_no_node_is_refused() -> None:
    unsound = "ed25519:" + "00" * 32
    for readers in ([unsound], [BOB.node, unsound]):
        with refused("node_id_invalid"):
            seal(ALICE, readers, TEXT)
    with pytest.raises(ValueError, match="at least one reader"):
        seal(ALICE, [], TEXT)


def test_an_unknown_form_of_sealing_is_refused() -> None:
    with refused("sealed_malformed", "is unknown"):
        open_sealed(BOB, ALICE.node, "rot13", "text")


@needs_age
def test_the_age_program_opens_what_posthouse_seals(tmp_path: Path) -> None:
    identity = store_openssh(CAROL, tmp_path / "carol")
    assert output("age", "--decrypt", "-i", identity, stdin=SEALED.encode()) == TEXT


@needs_age
def test_posthouse_opens_what_the_age_program_seals() -> None:
    recipients = [part for key in (BOB, CAROL) for part in ("-r", write_public_line(key.node))]
    content = output("age", "--encrypt", "--armor", *recipients, stdin=TEXT).decode()
    assert open_age(BOB, content) == open_age(CAROL, content) == TEXT
    with refused("sealed_unopened"):
        open_age(EVE, content)
