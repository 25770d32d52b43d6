"""Logging in to the Pinch wire: a challenge, and a signature that answers it.

The nonce is used once and for a few seconds, and the relay's name is part of what is signed, so an answer is worth
nothing anywhere else. Why a login failed is not told.
"""

from __future__ import annotations

import secrets

from posthouse.keys import verify
from posthouse.keys.token import same_token
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS
from posthouse.model.node import node_from_key
from posthouse.model.pinch import address_of, auth_bytes
from posthouse.relay.pinch.schema.pinch_pb2 import AuthResponse
from posthouse.relay.pinch.settings import PinchSettings
from posthouse.relay.pinch.wire import AUTH_RESPONSE, VERSION, challenge, decode

AUTHENTICATION_FAILED = "authentication failed"
ALREADY_CONNECTED = "address already connected"
_NONCE_BYTES = 32
_SIGNATURE_BYTES = 64


class Login:
    """One challenge and its answer."""

    def __init__(self, settings: PinchSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._issued_ns = clock.boot_ns()

    def challenge(self) -> bytes:
        """Return the envelope that opens the connection."""
        issued_at_ms = self._clock.wall_ns() // MILLISECOND_NS
        expires_at_ms = issued_at_ms + round(self._settings.challenge_s * 1_000)
        return challenge(self._nonce, issued_at_ms, expires_at_ms, self._settings.host)

    def check(self, frame: bytes) -> str | None:
        """Return the address whose key answered the challenge, or None when it did not."""
        envelope = decode(frame)
        if envelope is None or envelope.type != AUTH_RESPONSE or not envelope.HasField("auth_response"):
            return None
        if self._clock.boot_ns() - self._issued_ns > self._settings.challenge_s * 1e9:
            return None
        response = envelope.auth_response
        return address_of(response.public_key, self._settings.host) if self._is_proved(response) else None

    def _is_proved(self, response: AuthResponse) -> bool:
        if response.version != VERSION or len(response.signature) != _SIGNATURE_BYTES:
            return False
        if not same_token(response.nonce.hex(), self._nonce.hex()):
            return False
        try:
            node = node_from_key(response.public_key)
            verify(node, auth_bytes(self._settings.host, self._nonce), response.signature.hex())
        except PosthouseError:
            return False
        return True
