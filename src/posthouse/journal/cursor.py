"""A cursor names a place in a store's history: (epoch, seq), opaque outside.

seq alone would lie after a restore: the same number could then mean another fact. So a cursor of another epoch is
answered cursor_reset, and one below the pruned horizon cursor_pruned; nothing is ever skipped silently.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from posthouse.model.errors import error

_EPOCH_BYTES = 16
_SEQ_BYTES = 8


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place right after the record `seq` of the history `epoch`."""

    epoch: str
    seq: int

    def __str__(self) -> str:
        packed = bytes.fromhex(self.epoch) + self.seq.to_bytes(_SEQ_BYTES, "big")
        return base64.urlsafe_b64encode(packed).decode()


def parse_cursor(text: str) -> Cursor:
    """Return the cursor that `text` stands for."""
    try:
        packed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        packed = b""
    if len(packed) != _EPOCH_BYTES + _SEQ_BYTES:
        raise error("cursor_invalid", cursor=text[:80])
    return Cursor(packed[:_EPOCH_BYTES].hex(), int.from_bytes(packed[_EPOCH_BYTES:], "big"))
