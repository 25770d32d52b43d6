"""Canonical bytes of an event: the one text its id and signature stand for.

They are the UTF-8 of the JSON array ["posthouse-event-v1", pubkey, created_at_ns, kind, tags, content] without spaces,
non-ASCII verbatim, the seven short escapes, other control characters as \\u00xx in lower case. That is exactly what
msgspec writes; a test compares it with an encoder of its own.

If you change this every signature ever made becomes void: make a new version name instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from blake3 import blake3

from posthouse.model.errors import error
from posthouse.model.limits import INT64_MAX

EVENT_VERSION = "posthouse-event-v1"
_ENCODER = msgspec.json.Encoder()


def canonical_event_bytes(
    pubkey: str, created_at_ns: int, kind: int, tags: Sequence[Sequence[str]], content: str
) -> bytes:
    """Return the canonical bytes, or raise what keeps the fields from having any."""
    _check_fields(pubkey, created_at_ns, kind, tags, content)
    return encode_canonical(pubkey, created_at_ns, kind, tags, content)


def encode_canonical(pubkey: str, created_at_ns: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> bytes:
    """Return the canonical bytes of fields whose types are known to be right."""
    try:
        return _ENCODER.encode((EVENT_VERSION, pubkey, created_at_ns, kind, tags, content))
    except UnicodeEncodeError as fault:
        raise error("event_text_invalid", field="a tag or the content", reason="a lone surrogate") from fault


def event_id(canonical: bytes) -> str:
    """Return the id of an event: BLAKE3-256 of its canonical bytes, in hexadecimal."""
    return blake3(canonical).hexdigest()


def _check_fields(pubkey: str, created_at_ns: int, kind: int, tags: Sequence[Sequence[str]], content: str) -> None:
    for name, number in (("created_at_ns", created_at_ns), ("kind", kind)):
        if type(number) is not int:
            raise error("event_field_type", field=name, reason=f"{number!r} is not an integer")
    if not 0 <= created_at_ns <= INT64_MAX:
        raise error("event_created_at_range", created_at_ns=created_at_ns)
    for name, text in (("pubkey", pubkey), ("content", content)):
        if type(text) is not str:
            raise error("event_field_type", field=name, reason="it is not a string")
    if not isinstance(tags, list | tuple):
        raise error("event_field_type", field="tags", reason="it is not a list of lists of strings")
    for tag in tags:
        if not isinstance(tag, list | tuple) or any(type(value) is not str for value in tag):
            raise error("event_field_type", field="tags", reason="a tag is not a list of strings")
