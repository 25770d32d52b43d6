"""Tokens: secrets that prove a right by being known, such as the local token of a daemon.

A token is 32 random bytes in base64url without padding. Compare tokens only with `same_token`: an ordinary
comparison tells an attacker by its time how many characters were right.
"""

from __future__ import annotations

import hmac
import secrets

TOKEN_BYTES = 32


def new_token() -> str:
    """Return a fresh token of 43 characters."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def same_token(given: str | bytes, expected: str | bytes) -> bool:
    """Tell whether two tokens are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(_as_bytes(given), _as_bytes(expected))


def _as_bytes(token: str | bytes) -> bytes:
    # surrogates come from header bytes that are no UTF-8: they must compare unequal, not raise
    return token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
