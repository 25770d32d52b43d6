"""Signatures of a node over bytes, in the two forms an event may carry.

    native   128 lower-case hex digits: Ed25519 over the bytes themselves
    sshsig   the armor of `ssh-keygen -Y sign`, see posthouse.keys.sshsig

`verify` picks by form. It holds no state but a bounded memory of sound node ids and spends its time in
libsodium with the GIL released, so threads verify in parallel. What the bytes mean is not known here.
"""

from __future__ import annotations

import re

from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from posthouse.keys import sshsig
from posthouse.keys.identity import NodeKey, public_key
from posthouse.model.errors import error

_NATIVE = re.compile(r"[0-9a-f]{128}")


def sign_native(key: NodeKey, message: bytes) -> str:
    """Return the native signature of `message`."""
    return key.sign(message).hex()


def sign_sshsig(key: NodeKey, message: bytes, hash_name: sshsig.HashName = "sha512") -> str:
    """Return the armored OpenSSH signature of `message`; `ssh-keygen -Y verify` accepts it."""
    signature = key.sign(sshsig.signed_bytes(message, hash_name))
    return sshsig.write(key.public, hash_name, signature)


def verify(node: str, message: bytes, signature: str) -> None:
    """Refuse unless `signature`, in either form, is one of `node` over exactly these bytes."""
    public = public_key(node)
    if _NATIVE.fullmatch(signature):
        _check(node, public, message, bytes.fromhex(signature))
    elif signature.startswith(sshsig.BEGIN):
        hash_name, raw = sshsig.read(signature, public)
        _check(node, public, sshsig.signed_bytes(message, hash_name), raw)
    else:
        raise error("signature_malformed", reason="it is neither 128 lower-case hex digits nor an SSH signature")


def _check(node: str, public: bytes, message: bytes, raw: bytes) -> None:
    try:
        crypto_sign_open(raw + message, public)
    except BadSignatureError as failure:
        raise error("signature_invalid", node=node) from failure
