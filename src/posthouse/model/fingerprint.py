"""The fingerprint of a request: what tells a retry from a different request under the same client_message_id.

SHA-256 over seven UTF-8 fields joined by one NUL. A NUL inside a field is refused, so no two different lists of
fields have the same bytes. The daemon computes it over the caller's plaintext, the relay over the content as
received; budget and mentions are outside.

If you change this, every record in every store stops matching: raise ENVELOPE_VERSION and keep the old function.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Any

from posthouse.model.errors import error
from posthouse.model.jcs import jcs

ENVELOPE_VERSION = "1"
PREFIX_BYTES = 8  # enough to compare two requests by eye, too few to probe a secret


class DestinationKind(enum.StrEnum):
    """Where a message goes."""

    TOPIC = "topic"
    DM = "dm"
    QUEUE = "queue"


class Priority(enum.StrEnum):
    """How urgent a sender finds its message; never reorders anything."""

    NOW = "now"
    NEXT = "next"
    LOW = "low"


DEFAULT_PRIORITY = Priority.NEXT


def fingerprint(
    destination_kind: DestinationKind,
    destination_ref: str,
    reply_to: str | None,
    priority: Priority | None,
    meta_text: str,
    body: bytes,
) -> bytes:
    """Return the 32 bytes; `meta_text` is meta_field() of the meta value or a text already in JCS form.

    `destination_ref` is the topic's name, or the recipient's key as 64 lower-case digits.
    """
    fields = (
        ENVELOPE_VERSION,
        destination_kind,
        destination_ref,
        reply_to or "",
        priority or DEFAULT_PRIORITY,
        "" if meta_text in ("null", "{}") else meta_text,
        hashlib.sha256(body).hexdigest(),
    )
    text = "\0".join(fields)
    if text.count("\0") != len(fields) - 1:
        raise error("value_invalid", name="a field of the fingerprint", reason="it holds a NUL")
    try:
        return hashlib.sha256(text.encode("utf-8")).digest()
    except UnicodeEncodeError as fault:
        raise error("value_invalid", name="a field of the fingerprint", reason="a lone surrogate") from fault


def meta_field(meta: Any) -> str:
    """Return the meta field: the JCS text, or nothing when meta is absent, null or {}."""
    return "" if meta is None or meta == {} else jcs(meta)


def fingerprint_prefix(digest: bytes) -> str:
    """Return the digits of a fingerprint that conflicts tell."""
    return digest[:PREFIX_BYTES].hex()
