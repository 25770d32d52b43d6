"""Base64 with one spelling per value, for everything that is signed, compared or stored.

Python's decoder accepts stray bits in the last digit; two texts would then mean the same bytes. Here a text
that does not encode back to itself is refused.
"""

from __future__ import annotations

import base64
import binascii


def decode_base64(text: str) -> bytes:
    """Return the bytes of standard, padded base64; ValueError for any other spelling of them."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error) as failure:
        raise ValueError("it is not base64") from failure
    if encode_base64(data) != text:
        raise ValueError("it is not canonical base64")
    return data


def encode_base64(data: bytes) -> str:
    """Return standard, padded base64 on one line."""
    return base64.b64encode(data).decode("ascii")
