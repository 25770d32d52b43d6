"""The check every public Ed25519 key passes before use: a canonical point of the prime-order group.

Refused are points off the curve, encodings that are not canonical (y not below p, or a signed x of zero),
the eight points of small order in all their encodings, and points with a small-order part. Without this
check one owner could hold several ids, and a signature under a small-order key would fit any message. Keys
are never normalised.
"""

from __future__ import annotations

from nacl.bindings import crypto_core_ed25519_is_valid_point

from posthouse.model.errors import error

PUBLIC_BYTES = 32
_FIELD = 2**255 - 19  # p: the coordinates of the curve are numbers below it
_SIGN_BIT = 1 << 255  # of x, carried in the topmost bit of the encoded y


def check_point(public: bytes) -> None:
    """Refuse `public` unless it is the one encoding of a point that a key can have."""
    reason = _fault(public)
    if reason:
        raise error("node_id_invalid", node=f"ed25519:{public.hex()}", reason=reason)


def _fault(public: bytes) -> str | None:
    if len(public) != PUBLIC_BYTES:
        return f"it has {len(public)} bytes, not {PUBLIC_BYTES}"
    number = int.from_bytes(public, "little")
    y = number & ~_SIGN_BIT
    if y >= _FIELD:
        return "its encoding is not canonical: y is not below p"
    if number & _SIGN_BIT and y in (1, _FIELD - 1):  # the two points with x = 0
        return "its encoding is not canonical: x is zero and has a sign"
    if not crypto_core_ed25519_is_valid_point(public):
        return "it is not a point of the prime-order group"
    return None
