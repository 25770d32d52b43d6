"""Content that only the two agents can read: a NaCl box between their keys, which the relay forwards unopened."""

from __future__ import annotations

import json
from typing import Any

from nacl.public import Box
from nacl.signing import SigningKey, VerifyKey
from nacl.utils import random

from examples.pinch_agent.pinch_pb2 import EncryptedPayload, PlaintextPayload

CONTENT_TYPE = "application/x-pinch+json"


def seal(key: SigningKey, reader: bytes, text: str, sequence: int, timestamp_ms: int) -> EncryptedPayload:
    """Return a text that only the owner of the reader's key can open."""
    content = json.dumps({"text": text, "attribution": "agent"}).encode()
    plain = PlaintextPayload(
        version=1, sequence=sequence, timestamp=timestamp_ms, content=content, content_type=CONTENT_TYPE
    )
    nonce = random(Box.NONCE_SIZE)
    sealed = _box(key, reader).encrypt(plain.SerializeToString(), nonce)
    return EncryptedPayload(nonce=nonce, ciphertext=sealed.ciphertext, sender_public_key=bytes(key.verify_key))


def open_box(key: SigningKey, sender: bytes, payload: EncryptedPayload) -> str:
    """Return the text in a box, or raise CryptoError if it is not from this sender or not for this key."""
    plain = PlaintextPayload.FromString(_box(key, sender).decrypt(payload.ciphertext, payload.nonce))
    content: dict[str, Any] = json.loads(plain.content)
    return str(content["text"])


def _box(key: SigningKey, other: bytes) -> Box:
    return Box(key.to_curve25519_private_key(), VerifyKey(other).to_curve25519_public_key())
