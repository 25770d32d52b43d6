"""OpenSSH signatures: agreement with ssh-keygen both ways, and exactness where ssh-keygen is lax."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.keys import NodeKey, sign_sshsig, signature, verify, write_public_line
from posthouse.keys.ssh import armor, pack, pack_public
from posthouse.model.errors import Refused
from tests.keys.programs import needs_ssh_keygen, output, run, store_openssh
from tests.keys.refusal import refused

KEY = NodeKey(b"\x07" * 32)
OTHER = NodeKey(b"\x08" * 32)
MESSAGE = "posthouse: café ☕ \x00\n".encode()
HASHES: list[signature.HashName] = ["sha256", "sha512"]
NAMESPACE = "posthouse-event-v1"


def blob(  # one argument per field of the format, so that each test can spoil one
    *,
    magic: bytes = b"SSHSIG",
    version: int = 1,
    public: bytes = pack_public(KEY.public),
    namespace: bytes = NAMESPACE.encode(),
    reserved: bytes = b"",
    hash_name: bytes = b"sha512",
    kind: bytes = b"ssh-ed25519",
    cut: int = 64,
    inner_tail: bytes = b"",
) -> bytes:
    """Build a signature blob field by field; its Ed25519 signature is right for exactly these fields."""
    digest = hashlib.new(hash_name.decode(), MESSAGE).digest()
    raw = KEY.sign(b"SSHSIG" + pack(namespace, reserved, hash_name, digest))
    signature = pack(kind, raw[:cut]) + inner_tail
    return magic + version.to_bytes(4, "big") + pack(public, namespace, reserved, hash_name, signature)


def armored(data: bytes) -> str:
    return armor("SSH SIGNATURE", data, 70)


def test_the_builder_of_these_tests_makes_valid_signatures() -> None:
    assert armored(blob()) == sign_sshsig(KEY, MESSAGE)
    verify(KEY.node, MESSAGE, armored(blob()))
    verify(KEY.node, MESSAGE, armored(blob(hash_name=b"sha256")))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (blob(magic=b"SSHSIH"), "SSHSIG"),
        (blob(version=2), "version 1"),
        (blob(version=0), "version 1"),
        (blob(namespace=b"file"), "namespace"),
        (blob(namespace=b""), "namespace"),
        (blob(namespace=b"posthouse-event-v1\0"), "namespace"),
        (blob(namespace=b"posthouse-event-v2"), "namespace"),
        (blob(reserved=b"\0"), "reserved"),
        (blob(hash_name=b"sha384"), "hash"),
        (blob(hash_name=b"sha1"), "hash"),
        (blob(hash_name=b"SHA512"), "hash"),
        (blob(public=pack_public(OTHER.public)), "a key other than"),
        (blob(public=pack(b"ssh-rsa", b"\1\0\1", b"\0" * 256)), "follow its end"),
        (blob(public=pack(b"ssh-rsa", KEY.public)), "type ssh-rsa"),
        (blob(public=pack(b"sk-ssh-ed25519@openssh.com", KEY.public)), "type sk-ssh-ed25519"),
        (blob(public=pack_public(KEY.public) + b"\0"), "follow its end"),
        (blob(public=pack_public(KEY.public[:31])), "a key other than"),
        (blob(kind=b"ssh-ed448"), "not one of ssh-ed25519"),
        (blob(kind=b"rsa-sha2-512"), "not one of ssh-ed25519"),
        (blob(cut=63), "not one of ssh-ed25519"),
        (blob(inner_tail=b"\1"), "follow its end"),
        (blob() + b"\0", "follow its end"),
        (blob() + blob(), "follow its end"),
        (blob()[:-1], "ends too early"),
        (blob()[:5], "ends too early"),
        (blob()[:10] + b"\xff\xff\xff\xff" + blob()[14:], "ends too early"),
    ],
)
def test_any_other_framing_is_refused(data: bytes, reason: str) -> None:
    with refused("signature_malformed", reason):
        verify(KEY.node, MESSAGE, armored(data))


GOOD = sign_sshsig(KEY, MESSAGE)
LINES = GOOD.splitlines()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(GOOD.replace("\n", "\r\n"), id="CRLF"),
        pytest.param(GOOD.replace("\n", "\r"), id="CR"),
        pytest.param(GOOD + "\n", id="second line feed"),
        pytest.param(GOOD + "x", id="text behind"),
        pytest.param(GOOD + GOOD, id="two blocks"),
        pytest.param(GOOD.replace("END SSH", "END PGP"), id="other end"),
        pytest.param(GOOD.replace("-----END SSH SIGNATURE-----\n", ""), id="no end"),
        pytest.param("-----BEGIN SSH SIGNATURE-----", id="begin only"),
        pytest.param("-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----\n", id="empty"),
        pytest.param("-----BEGIN SSH SIGNATURE-----\n\n-----END SSH SIGNATURE-----\n", id="empty line"),
        pytest.param("\n".join([LINES[0], "", *LINES[1:], ""]), id="empty line first"),
        pytest.param("\n".join([LINES[0], LINES[1] + " ", *LINES[2:], ""]), id="space at a line's end"),
        pytest.param("\n".join([LINES[0], LINES[1][:-1], LINES[1][-1] + LINES[2], *LINES[3:], ""]), id="ragged"),
        pytest.param("\n".join([LINES[0], "".join(LINES[1:-1]), LINES[-1], ""]), id="one long line"),
        pytest.param(GOOD.replace(LINES[2], "_" + LINES[2][1:]), id="base64url digit"),
        pytest.param(GOOD.replace(LINES[2], "é" + LINES[2][1:]), id="not ASCII"),
        pytest.param("\n".join([*LINES[:-2], LINES[-2] + "=", LINES[-1], ""]), id="padding too long"),
    ],
)
def test_any_other_armor_is_refused(text: str) -> None:
    with refused("signature_malformed"):
        verify(KEY.node, MESSAGE, text)


def test_a_large_text_is_refused_before_it_is_decoded() -> None:
    with refused("signature_malformed", "longer than 4096"):
        verify(KEY.node, MESSAGE, armored(blob() + bytes(4096)))


@given(st.integers(min_value=0, max_value=8 * len(blob()) - 1))
@settings(max_examples=80)
def test_any_flipped_bit_of_the_blob_is_refused(bit: int) -> None:
    data = bytearray(blob())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Refused) as caught:
        verify(KEY.node, MESSAGE, armored(bytes(data)))
    assert caught.value.code in ("signature_malformed", "signature_invalid")


@pytest.mark.parametrize("columns", [64, 70, 76])
def test_the_usual_line_lengths_and_a_stripped_end_are_accepted(columns: int) -> None:
    text = armor("SSH SIGNATURE", blob(), columns)
    verify(KEY.node, MESSAGE, text)
    verify(KEY.node, MESSAGE, text.removesuffix("\n"))


@needs_ssh_keygen
@pytest.mark.parametrize("hash_name", HASHES)
def test_ssh_keygen_accepts_our_signatures(tmp_path: Path, hash_name: signature.HashName) -> None:
    signature = tmp_path / "sig"
    signature.write_text(sign_sshsig(KEY, MESSAGE, hash_name))
    signers = tmp_path / "signers"
    signers.write_text(f'node namespaces="{NAMESPACE}" {write_public_line(KEY.node)}\n')
    command = ("ssh-keygen", "-Y", "verify", "-f", signers, "-I", "node", "-n", NAMESPACE, "-s", signature)
    assert b"Good" in output(*command, stdin=MESSAGE)
    assert run(*command, stdin=MESSAGE + b"!").returncode != 0


@needs_ssh_keygen
@pytest.mark.parametrize("hash_name", HASHES)
def test_we_accept_signatures_of_ssh_keygen_and_they_are_ours_to_the_byte(
    tmp_path: Path, hash_name: signature.HashName
) -> None:
    made = _sign_with_ssh_keygen(tmp_path, KEY, NAMESPACE, hash_name)
    verify(KEY.node, MESSAGE, made)
    assert made == sign_sshsig(KEY, MESSAGE, hash_name)


@needs_ssh_keygen
def test_a_signature_ssh_keygen_made_for_another_purpose_is_refused(tmp_path: Path) -> None:
    with refused("signature_malformed", "namespace"):
        verify(KEY.node, MESSAGE, _sign_with_ssh_keygen(tmp_path, KEY, "git", "sha512"))


@needs_ssh_keygen
def test_a_signature_ssh_keygen_made_with_another_key_is_refused(tmp_path: Path) -> None:
    with refused("signature_malformed", "a key other than"):
        verify(KEY.node, MESSAGE, _sign_with_ssh_keygen(tmp_path, OTHER, NAMESPACE, "sha512"))


def _sign_with_ssh_keygen(folder: Path, key: NodeKey, namespace: str, hash_name: str) -> str:
    path = store_openssh(key, folder / "key")
    option = f"hashalg={hash_name}"
    return output("ssh-keygen", "-Y", "sign", "-f", path, "-n", namespace, "-O", option, stdin=MESSAGE).decode()
