"""Signatures of a node over bytes, in the three forms that an event may carry; `verify` accepts all.

    native   128 lower-case hex digits: Ed25519 over the bytes themselves
    sshsig   the armor of `ssh-keygen -Y sign`:
             "SSHSIG" 00000001 string(public key blob) string(namespace) string("") string(hash) string(signature blob)
             signed: "SSHSIG" string(namespace) string("") string(hash) string(hash of the message)
    batch    posthouse.keys.batch_signature

Parsing is exact: other namespaces, hashes, key types, reserved data and trailing bytes are refused. `verify` spends
its time in libsodium with the interpreter lock released, so threads verify in parallel. The signature over the root of
a batch is verified once and kept for the batch's other events. If you change sshsig: docs/protocol.md, its vectors, and
the tests against ssh-keygen.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, get_args

from blake3 import blake3
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from posthouse.keys.batch_signature import read_batch_signature, whole_batch_bytes
from posthouse.keys.identity import NodeKey, public_key
from posthouse.keys.ssh import KEY_TYPE, Reader, armor, pack, pack_public, unarmor, unpack_public
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import BATCH_PREFIX, is_unknown_form
from posthouse.model.limits import SIGNATURE_ARMOR_MAX_CHARS

HashName = Literal["sha256", "sha512"]
NAMESPACE = b"posthouse-event-v1"
SSHSIG_LABEL = "SSH SIGNATURE"
SSHSIG_BEGIN = f"-----BEGIN {SSHSIG_LABEL}-----"
_MAGIC = b"SSHSIG"
_VERSION = 1
_COLUMNS = 70  # as ssh-keygen wraps
_SIGNATURE_BYTES = 64
_VERIFIED_BATCHES = 1_024  # about 300 KiB; the events of a batch arrive together


def sshsig_signed_bytes(message: bytes, hash_name: HashName) -> bytes:
    """Return the bytes that the Ed25519 signature inside an OpenSSH signature covers."""
    return _MAGIC + pack(NAMESPACE, b"", hash_name.encode(), hashlib.new(hash_name, message).digest())


def write_sshsig(public: bytes, hash_name: HashName, signature: bytes) -> str:
    """Return the armor that ssh-keygen would print."""
    head = _MAGIC + _VERSION.to_bytes(4, "big")
    fields = pack(pack_public(public), NAMESPACE, b"", hash_name.encode(), pack(KEY_TYPE, signature))
    return armor(SSHSIG_LABEL, head + fields, _COLUMNS)


def read_sshsig(text: str, public: bytes) -> tuple[HashName, bytes]:
    """Return hash and Ed25519 signature of an armor that names the key `public`, without verifying it."""
    if len(text) > SIGNATURE_ARMOR_MAX_CHARS:
        raise error("signature_malformed", reason=f"it is longer than {SIGNATURE_ARMOR_MAX_CHARS} characters")
    try:
        return _parse(unarmor(SSHSIG_LABEL, text), public)
    except ValueError as failure:
        raise error("signature_malformed", reason=f"as an SSH signature, {failure}") from failure


def _parse(blob: bytes, public: bytes) -> tuple[HashName, bytes]:
    reader = Reader(blob)
    if reader.take(len(_MAGIC)) != _MAGIC or reader.number() != _VERSION:
        raise ValueError("it does not start with SSHSIG version 1")
    if unpack_public(reader.string()) != public:
        raise ValueError("it was made with a key other than the one that the event names")
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
            return known  # type: ignore[no-any-return]  # get_args loses the literal type
    raise ValueError("its hash is neither sha256 nor sha512")


def _parse_signature(blob: bytes) -> bytes:
    reader = Reader(blob)
    kind, signature = reader.string(), reader.string()
    reader.end()
    if kind != KEY_TYPE or len(signature) != _SIGNATURE_BYTES:
        raise ValueError("its signature is not one of ssh-ed25519")
    return signature


_NATIVE = re.compile(r"[0-9a-f]{128}")


def sign_native(key: NodeKey, message: bytes) -> str:
    """Return the native signature of `message`."""
    return key.sign(message).hex()


def sign_sshsig(key: NodeKey, message: bytes, hash_name: HashName = "sha512") -> str:
    """Return the armored OpenSSH signature of `message`; `ssh-keygen -Y verify` accepts it."""
    signature = key.sign(sshsig_signed_bytes(message, hash_name))
    return write_sshsig(key.public, hash_name, signature)


def verify(node: str, message: bytes, signature: str) -> None:
    """Raise signature_invalid unless `signature`, in any form, is by `node` over exactly these bytes."""
    public = public_key(node)
    if _NATIVE.fullmatch(signature):
        _check(node, public, message, bytes.fromhex(signature))
    elif signature.startswith(SSHSIG_BEGIN):
        hash_name, raw = read_sshsig(signature, public)
        _check(node, public, sshsig_signed_bytes(message, hash_name), raw)
    elif signature.startswith(BATCH_PREFIX):
        batch = read_batch_signature(signature)
        _check_batch(node, public, batch.signed_bytes(blake3(message).digest()), batch.signature)
    elif is_unknown_form(signature):
        raise error("signature_form_unknown", form=signature.partition(".")[0])
    else:
        raise error("signature_malformed", reason="it is neither 128 lower-case hex digits nor an SSH signature")


def is_whole_batch(node: str, event_ids: Sequence[str], signatures: Sequence[str]) -> bool:
    """Return True if these are all events of a batch by `node`, in order, each with its valid signature.

    The caller has computed the ids from the canonical bytes. One tree serves all events, which costs half as much as
    the path of each. False does not mean invalid: `verify` then decides for each event.
    """
    covered = whole_batch_bytes(event_ids, signatures)
    if covered is None:
        return False
    try:
        _check_batch(node, public_key(node), *covered)
    except PosthouseError:
        return False
    return True


@lru_cache(maxsize=_VERIFIED_BATCHES)  # the cache keeps successes only: a call that raises is not cached
def _check_batch(node: str, public: bytes, signed: bytes, raw: bytes) -> None:
    _check(node, public, signed, raw)


def _check(node: str, public: bytes, message: bytes, raw: bytes) -> None:
    try:
        crypto_sign_open(raw + message, public)
    except BadSignatureError as failure:
        raise error("signature_invalid", node=node) from failure
