"""A confirm that waits for its sender, as `items` of waiting_confirmations keeps it: a list of one.

If you change a field: 1. a migration of what waits, 2. pinch/check.py.
"""

from __future__ import annotations

import msgspec

_encode = msgspec.json.Encoder().encode


class Told(msgspec.Struct, frozen=True):
    """One confirm; the envelope stands as base64 in the text."""

    #: that of the delivery
    id: str
    was_stored: bool
    at_ns: int
    #: as it goes to the sender
    envelope: bytes


decode_told = msgspec.json.Decoder(list[Told]).decode


def encode_told(told: Told) -> str:
    """Return the text that waits."""
    return _encode([told]).decode()
