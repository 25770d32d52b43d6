"""The OpenSSH signature format (sshsig), as far as events use it: one namespace, ssh-ed25519 keys only.

    armor   "SSHSIG" 00000001 string(public key blob) string(namespace) string("") string(hash name)
            string(signature blob)
    signed  "SSHSIG" string(namespace) string("") string(hash name) string(hash of the message)

Reading is exact, because ssh-keygen accepts more than one signature needs: other namespaces, hashes beside
sha256 and sha512, keys in hardware, certificates, reserved data and trailing bytes are refused. If you
change this, change docs/protocol.md and its vectors, and run the tests against ssh-keygen.
"""

from __future__ import annotations

import hashlib
from typing import Literal, get_args

from posthouse.keys.sshwire import KEY_TYPE, Reader, armor, pack, pack_public, unarmor, unpack_public
from posthouse.model.errors import error
from posthouse.model.limits import SIGNATURE_ARMOR_MAX_CHARS

HashName = Literal["sha256", "sha512"]

NAMESPACE = b"posthouse-event-v1"
LABEL = "SSH SIGNATURE"
BEGIN = f"-----BEGIN {LABEL}-----"
_MAGIC = b"SSHSIG"
_VERSION = 1
_COLUMNS = 70  # as ssh-keygen wraps
_SIGNATURE_BYTES = 64


def signed_bytes(message: bytes, hash_name: HashName) -> bytes:
    """Return what the Ed25519 signature inside an OpenSSH signature covers."""
    return _MAGIC + pack(NAMESPACE, b"", hash_name.encode(), hashlib.new(hash_name, message).digest())


def write(public: bytes, hash_name: HashName, signature: bytes) -> str:
    """Return the armor that ssh-keygen would print."""
    head = _MAGIC + _VERSION.to_bytes(4, "big")
    fields = pack(pack_public(public), NAMESPACE, b"", hash_name.encode(), pack(KEY_TYPE, signature))
    return armor(LABEL, head + fields, _COLUMNS)


def read(text: str, public: bytes) -> tuple[HashName, bytes]:
    """Return hash and Ed25519 signature of an armor that names the key `public`; it is not verified yet."""
    if len(text) > SIGNATURE_ARMOR_MAX_CHARS:
        raise error("signature_malformed", reason=f"it is longer than {SIGNATURE_ARMOR_MAX_CHARS} characters")
    try:
        return _parse(unarmor(LABEL, text), public)
    except ValueError as failure:
        raise error("signature_malformed", reason=f"as an SSH signature, {failure}") from failure


def _parse(blob: bytes, public: bytes) -> tuple[HashName, bytes]:
    reader = Reader(blob)
    if reader.take(len(_MAGIC)) != _MAGIC or reader.number() != _VERSION:
        raise ValueError("it does not start with SSHSIG version 1")
    if unpack_public(reader.string()) != public:
        raise ValueError("it was made with another key than the event names")
    if reader.string() != NAMESPACE:
        raise ValueError(f"its namespace is not {NAMESPACE.decode()}")
    if reader.string():
        raise ValueError("its reserved field is not empty")
    hash_name = _hash_name(reader.string())
    signature = _parse_signature(reader.string())
    reader.end()
    return hash_name, signature


def _hash_name(name: bytes) -> HashName:
    for known in get_args(HashName):
        if name == known.encode():
            return known  # type: ignore[no-any-return]  # get_args forgets the literal type
    raise ValueError("its hash is neither sha256 nor sha512")


def _parse_signature(blob: bytes) -> bytes:
    reader = Reader(blob)
    kind, signature = reader.string(), reader.string()
    reader.end()
    if kind != KEY_TYPE or len(signature) != _SIGNATURE_BYTES:
        raise ValueError("its signature is not one of ssh-ed25519")
    return signature
