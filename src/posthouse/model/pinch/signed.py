"""The bytes that Pinch agents sign: to authenticate, and to confirm a message.

If you change one, every agent's signature is void; they are the wire's, see docs/protocol.md.
"""

from __future__ import annotations

_AUTH_DOMAIN = b"pinch-auth-v1"


def auth_bytes(host: str, nonce: bytes) -> bytes:
    """Return what an agent signs to prove its key to the relay of this name."""
    return b"\0".join((_AUTH_DOMAIN, host.encode(), nonce))


def confirm_bytes(message_id: bytes, timestamp: int) -> bytes:
    """Return what a reader signs to confirm a message at a time in milliseconds."""
    return message_id + timestamp.to_bytes(8, "big", signed=True)
