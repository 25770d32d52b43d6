"""The envelope: a bus message as it lies in a mailbox file, and the dead letter around one.

A file holds one JSON object in camelCase, as DorkOS writes it; `publishedTo` is ours and says which pattern
a fan-out was published to. Values are validated on the way in and on the way out of a file. Fields this
version does not know are ignored, so that newer programs may add some.

If you change the format: 1. docs/explain storage format, 2. the vectors in tests/model/test_envelope.py,
3. the index rebuild of the bus.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from posthouse.model.budget import Budget
from posthouse.model.errors import PosthouseError, error
from posthouse.model.ids import validate_ulid
from posthouse.model.strict_json import check_json_value
from posthouse.model.subjects import validate_subject
from posthouse.model.timestamps import parse_utc

T = TypeVar("T")


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One message for one endpoint."""

    #: ULID, larger than that of every message before it
    id: str
    #: the endpoint's own subject; a pattern only when it reached no endpoint, and published_to is the same
    subject: str
    from_: str = msgspec.field(name="from")
    budget: Budget
    #: ISO-8601, UTC
    created_at: str
    #: any JSON value
    payload: Any
    reply_to: str | None = None
    #: the pattern or subject given to publish, where it is not the subject
    published_to: str | None = None

    def __post_init__(self) -> None:
        validate_ulid(self.id)
        validate_subject(self.subject, allow_wildcards=self.subject == self.published_to)
        validate_subject(self.from_)
        parse_utc(self.created_at)
        if self.reply_to is not None:
            validate_subject(self.reply_to)
        if self.published_to is not None:
            validate_subject(self.published_to, allow_wildcards=True)


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What failed/ holds: the envelope (null when the file could not be read as one), why, and when."""

    envelope: Envelope | None
    reason: str
    #: ISO-8601, UTC
    failed_at: str
    #: the text of a file that is no envelope
    raw: str | None = None

    def __post_init__(self) -> None:
        parse_utc(self.failed_at)


_ENCODER = msgspec.json.Encoder()
_ENVELOPE = msgspec.json.Decoder(Envelope)
_DEAD_LETTER = msgspec.json.Decoder(DeadLetter)


def json_payload(payload: Any) -> Any:
    """Return the payload as plain JSON values, or raise payload_unserialisable; typed payloads are taken apart."""
    if isinstance(payload, msgspec.Struct):
        payload = msgspec.to_builtins(payload)
    check_json_value(payload)
    return payload


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the bytes of a mailbox file; the payload must have passed json_payload."""
    return _ENCODER.encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    """Return the envelope in a mailbox file, or raise value_invalid or the error of the field that is wrong."""
    return _decode(_ENVELOPE, data, "envelope")


def encode_dead_letter(letter: DeadLetter) -> bytes:
    """Return the bytes of a file in failed/."""
    return _ENCODER.encode(letter)


def decode_dead_letter(data: bytes) -> DeadLetter:
    """Return the dead letter in a file of failed/, or raise value_invalid."""
    return _decode(_DEAD_LETTER, data, "dead letter")


def _decode(decoder: msgspec.json.Decoder[T], data: bytes, name: str) -> T:
    try:
        return decoder.decode(data)
    except PosthouseError:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
        raise error("value_invalid", name=name, reason=str(fault)) from fault
