"""OpenSSH keys: ssh-keygen and posthouse read what the other writes, and errors say what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.keys import NodeKey, keyfile, node_id, read_public_line, write_public_line
from posthouse.keys.ssh import armor, encode_base64, pack, pack_public, read_private_key, unarmor, write_private_key
from tests.keys.programs import needs_ssh_keygen, output, store_openssh
from tests.keys.refusal import refused

KEY = NodeKey(b"\x07" * 32)
OTHER = NodeKey(b"\x08" * 32)
PASSPHRASE = "correct horse ☕"


def keygen(path: Path, *options: str, passphrase: str = "") -> Path:
    output("ssh-keygen", "-q", "-N", passphrase, "-C", "a comment", "-f", path, *options)
    return path


@given(st.binary(min_size=32, max_size=32))
@settings(max_examples=20)
def test_a_key_survives_the_openssh_format(seed: bytes) -> None:
    key = NodeKey(seed)
    assert read_private_key(write_private_key(key)).reveal_seed() == seed


@given(st.binary(min_size=32, max_size=32))
@settings(max_examples=20)
def test_a_node_id_survives_the_public_key_line(seed: bytes) -> None:
    node = NodeKey(seed).node
    assert read_public_line(write_public_line(node)) == node
    assert read_public_line(write_public_line(node, "name@host with spaces") + "\n") == node


@needs_ssh_keygen
def test_a_plain_key_of_ssh_keygen_is_loaded(tmp_path: Path) -> None:
    path = keygen(tmp_path / "key", "-t", "ed25519")
    key = keyfile.load(path)
    assert key.node == read_public_line(path.with_name("key.pub").read_text())


@needs_ssh_keygen
@pytest.mark.parametrize("cipher", ["aes256-ctr", "aes256-gcm@openssh.com", "aes256-cbc"])
def test_a_key_with_a_passphrase_opens_with_it_only(tmp_path: Path, cipher: str) -> None:
    path = keygen(tmp_path / "key", "-t", "ed25519", "-a", "4", "-Z", cipher, passphrase=PASSPHRASE)
    assert keyfile.load(path, PASSPHRASE).node == read_public_line(path.with_name("key.pub").read_text())
    assert keyfile.load(path, PASSPHRASE.encode()).node == keyfile.load(path, PASSPHRASE).node
    with refused("passphrase_needed"):
        keyfile.load(path)
    with refused("passphrase_needed"):
        keyfile.load(path, "")
    with refused("passphrase_wrong") as errors:
        keyfile.load(path, "incorrect horse")
    assert "horse" not in str(errors[0].problem())


@needs_ssh_keygen
def test_a_cipher_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    cipher = "chacha20-poly1305@openssh.com"
    path = keygen(tmp_path / "key", "-t", "ed25519", "-a", "4", "-Z", cipher, passphrase=PASSPHRASE)
    with refused("key_malformed", "chacha20"):
        keyfile.load(path, PASSPHRASE)


@needs_ssh_keygen
def test_openssh_reads_what_posthouse_writes(tmp_path: Path) -> None:
    path = store_openssh(KEY, tmp_path / "key")
    assert output("ssh-keygen", "-y", "-f", path).decode().strip() == write_public_line(KEY.node)


@needs_ssh_keygen
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("-t", "rsa", "-b", "2048"), "ssh-rsa"),
        (("-t", "ecdsa"), "ecdsa-sha2-nistp256"),
        (("-t", "rsa", "-b", "2048", "-m", "PEM"), "rsa"),
        (("-t", "ecdsa", "-m", "PEM"), "ecdsa"),
        (("-t", "ecdsa", "-m", "PKCS8"), "pkcs8"),
    ],
)
def test_keys_of_other_types_are_refused_by_their_name(tmp_path: Path, options: tuple[str, ...], kind: str) -> None:
    path = keygen(tmp_path / "key", *options)
    with refused("key_type_unsupported", f"type {kind};"):
        keyfile.load(path)
    if kind.startswith(("ssh-", "ecdsa-")):
        with refused("key_type_unsupported", kind):
            read_public_line(path.with_name("key.pub").read_text())


def spoil(text: str, at: int, piece: bytes) -> str:
    data = bytearray(unarmor("OPENSSH PRIVATE KEY", text))
    data[at : at + len(piece)] = piece
    return armor("OPENSSH PRIVATE KEY", bytes(data), 70)


TEXT = write_private_key(KEY)
SIZE = len(unarmor("OPENSSH PRIVATE KEY", TEXT))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----\n-----END OPENSSH PRIVATE KEY-----\n",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
        TEXT[:200],
        TEXT.replace("OPENSSH", "OPENSSL"),
        spoil(TEXT, 0, b"X"),
        spoil(TEXT, 35, b"\0\0\0\2"),
        armor("OPENSSH PRIVATE KEY", unarmor("OPENSSH PRIVATE KEY", TEXT)[:150], 70),
        spoil(TEXT, SIZE - 10, b"\xff" * 4),
        spoil(TEXT, 98, b"\1\2\3\4"),
    ],
)
def test_damaged_keys_are_refused_without_showing_them(text: str) -> None:
    with refused("key_malformed") as errors:
        read_private_key(text, source="/some/file")
    told = str(errors[0].problem())
    assert "/some/file" in told
    assert KEY.reveal_seed().hex() not in told


def test_halves_that_do_not_belong_together_are_refused() -> None:
    mixed = bytearray(unarmor("OPENSSH PRIVATE KEY", TEXT))
    at = mixed.index(KEY.public)
    mixed[at : at + 32] = OTHER.public
    with refused("key_malformed"):
        read_private_key(armor("OPENSSH PRIVATE KEY", bytes(mixed), 70))


LINE = write_public_line(KEY.node)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("", "key_type_unsupported"),
        ("ssh-rsa AAAAB3NzaC1yc2EAAAADAQAB", "key_type_unsupported"),
        ("sk-ssh-ed25519@openssh.com AAAA", "key_type_unsupported"),
        (f'command="ls" {LINE}', "key_type_unsupported"),
        (KEY.node, "key_type_unsupported"),
        ("ssh-ed25519", "key_malformed"),
        ("ssh-ed25519 AAAA", "key_malformed"),
        (LINE[:-1], "key_malformed"),
        (LINE[:-1] + "=", "key_malformed"),
        (LINE.replace(" ", "  "), "key_malformed"),
        (LINE.replace("AAAAC3", "AAAAD3"), "key_malformed"),
    ],
)
def test_other_public_key_lines_are_refused(line: str, code: str) -> None:
    with refused(code):
        read_public_line(line)


def test_a_public_key_line_with_an_unsound_point_is_refused() -> None:
    blob = pack_public(b"\1" + bytes(31))
    with refused("node_id_invalid"):
        read_public_line(f"ssh-ed25519 {encode_base64(blob)}")
    with refused("node_id_invalid", "not 32"):
        node_id(pack(b"short"))
