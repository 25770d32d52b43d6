"""Values of the bus: envelopes and dead letters (files), the standard payload, and signals (never stored).

A mailbox file holds one JSON object in camelCase, as DorkOS writes it. posthouse adds `publishedTo`, the pattern of a
fan-out, and `inReplyTo`, which marks a return and names the message that it answers. Values are validated when a file
is written and read; unknown fields are ignored, so newer programs may add fields. A payload may be any JSON value;
StandardPayload is the common shape between agents.

If you change the file format: 1. docs/explain storage format, 2. the vectors in tests/model/test_envelope.py, 3. the
index rebuild of the bus.
"""

from __future__ import annotations

import enum
import re
from functools import partial
from typing import Annotated, Any

import msgspec

from posthouse.model.budget import Budget, Cause
from posthouse.model.clock import parse_utc
from posthouse.model.errors import error
from posthouse.model.strict_json import check_json_value, convert_or_refuse
from posthouse.model.subjects import validate_subject
from posthouse.model.ulid import validate_ulid

_MESH_MESSAGE_ID = re.compile(r"[0-9a-f]{64}")
NonNegative = Annotated[int, msgspec.Meta(ge=0)]


class Performative(enum.StrEnum):
    """The intent of a message in a conversation."""

    REQUEST = "request"
    INFORM = "inform"
    QUERY = "query"
    PROPOSE = "propose"
    ACCEPT = "accept"
    REJECT = "reject"
    CFP = "cfp"
    FAILURE = "failure"


class ChannelType(enum.StrEnum):
    """The kind of channel of a conversation."""

    DM = "dm"
    GROUP = "group"
    CHANNEL = "channel"
    THREAD = "thread"


class _Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A value that programs make: its fields are checked whenever one is made, and enums accept their strings."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            given = getattr(self, field.name)
            if given is None or given is msgspec.UNSET:
                continue
            value = convert_or_refuse(field.encode_name, partial(msgspec.convert, type=field.type), given)
            if value is not given:
                msgspec.structs.force_setattr(self, field.name, value)


class Attachment(_Checked, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A file attached to a message; the bus carries its path, not its bytes."""

    path: str
    filename: str
    mime_type: str
    size: NonNegative | None = None


class ResponseContext(_Checked, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Constraints on a reply where it is displayed."""

    platform: str
    max_length: NonNegative | None = None
    supported_formats: tuple[str, ...] | None = None
    instructions: str | None = None


class Usage(_Checked, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Model usage and cost of a message; posthouse.model.usage documents the fields."""

    model: str
    input_tokens: NonNegative = 0
    output_tokens: NonNegative = 0
    cached_tokens: NonNegative = 0
    cost_usd: Annotated[float, msgspec.Meta(ge=0)] | None = None
    task: str | None = None


class StandardPayload(_Checked, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A message between agents, or between an agent and a channel."""

    content: str
    sender_name: str | None = None
    sender_avatar: str | None = None
    channel_name: str | None = None
    channel_type: ChannelType | None = None
    attachments: tuple[Attachment, ...] | None = None
    response_context: ResponseContext | None = None
    performative: Performative | None = None
    conversation_id: str | None = None
    correlation_id: str | None = None
    usage: Usage | None = None
    platform_data: dict[str, Any] | None = None


def read_payload(value: Any) -> StandardPayload:
    """Return an envelope's payload as a standard payload, or raise value_invalid."""
    return convert_or_refuse("payload", _to_payload, value)


def _to_payload(value: Any) -> StandardPayload:
    return msgspec.convert(value, StandardPayload)


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One message for one endpoint."""

    #: ULID, greater than that of every earlier message
    id: str
    #: subject of the endpoint; a pattern only if it reached no endpoint, and then equal to published_to
    subject: str
    from_: str = msgspec.field(name="from")
    budget: Budget
    #: ISO-8601, UTC
    created_at: str
    #: any JSON value
    payload: Any
    reply_to: str | None = None
    #: the pattern or subject given to publish, if it differs from the subject
    published_to: str | None = None
    #: set by the bus if this message is a return: the message that it answers (a ULID, or the id of a mesh message)
    in_reply_to: str | None = None

    def __post_init__(self) -> None:
        validate_ulid(self.id)
        validate_subject(self.subject, allow_wildcards=self.subject == self.published_to)
        validate_subject(self.from_)
        parse_utc(self.created_at)
        if self.reply_to is not None:
            validate_subject(self.reply_to)
        if self.published_to is not None:
            validate_subject(self.published_to, allow_wildcards=True)
        if self.in_reply_to is not None:
            _validate_message_id(self.in_reply_to)

    @property
    def as_cause(self) -> Cause:
        """This message as the cause of another one, for the rule of returns."""
        return Cause(self.id, self.from_, self.reply_to, self.in_reply_to is not None)


def _validate_message_id(value: str) -> None:
    if _MESH_MESSAGE_ID.fullmatch(value) is None:
        validate_ulid(value)


class HandlerError(msgspec.Struct, frozen=True):
    """The exception of a handler, as its dead letter keeps it."""

    #: name of the exception's class, with its module unless that is builtins
    type: str
    text: str
    #: the innermost frames, outermost first: `file:line in function: source`
    frames: tuple[str, ...] = ()


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A file of failed/: the envelope (null if the file was not a valid one), the reason and the time."""

    envelope: Envelope | None
    reason: str
    #: ISO-8601, UTC
    failed_at: str
    #: the text of a file that is not an envelope
    raw: str | None = None
    #: the exception, if a handler raised
    error: HandlerError | None = None
    #: the rule that refused the message, or no_endpoint; None for a message that a mailbox had accepted
    refused: str | None = None
    #: the payload made room for newer dead letters; it is null in the envelope
    is_payload_dropped: bool = msgspec.field(default=False, name="payloadDropped")

    def __post_init__(self) -> None:
        parse_utc(self.failed_at)


_ENCODER = msgspec.json.Encoder()
_ENVELOPE = msgspec.json.Decoder(Envelope)
_DEAD_LETTER = msgspec.json.Decoder(DeadLetter)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def json_payload(payload: Any) -> Any:
    """Return the payload as plain JSON values, or raise payload_unserialisable; structs become dictionaries."""
    if isinstance(payload, msgspec.Struct):
        payload = msgspec.to_builtins(payload)
    check_json_value(payload)
    return payload


def encode_payload(payload: Any, max_bytes: int) -> msgspec.Raw:
    """Return the JSON text of a payload, or raise payload_too_large or payload_unserialisable."""
    data = _ENCODER.encode(json_payload(payload))
    if len(data) > max_bytes:
        raise error("payload_too_large", limit_bytes=max_bytes)
    return msgspec.Raw(data)


def encode_envelope(envelope: Envelope) -> bytes:
    """Return the bytes of a mailbox file; the payload must have passed json_payload."""
    return _ENCODER.encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    """Return the envelope in a mailbox file, or raise value_invalid or the error of the invalid field."""
    return convert_or_refuse("envelope", _ENVELOPE.decode, data)


def decode_dead_letter(data: bytes) -> DeadLetter:
    """Return the dead letter in a file of failed/, or raise value_invalid."""
    return convert_or_refuse("dead letter", _DEAD_LETTER.decode, data)


def without_payload(data: bytes) -> bytes:
    """Return the content of a dead letter's file with a null payload; the other fields stay as they are."""
    fields = convert_or_refuse("dead letter", _FIELDS.decode, data)
    envelope = convert_or_refuse("envelope", _FIELDS.decode, bytes(fields.get("envelope", b"null")))
    envelope["payload"] = msgspec.Raw(b"null")
    fields |= {"envelope": msgspec.Raw(_ENCODER.encode(envelope)), "payloadDropped": msgspec.Raw(b"true")}
    return _ENCODER.encode(fields)


class SignalType(enum.StrEnum):
    """The topic of a signal."""

    TYPING = "typing"
    PRESENCE = "presence"
    READ_RECEIPT = "read_receipt"
    DELIVERY_RECEIPT = "delivery_receipt"
    PROGRESS = "progress"
    BACKPRESSURE = "backpressure"


class Signal(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One signal about an endpoint."""

    type: SignalType
    state: str
    endpoint_subject: str
    #: ISO-8601, UTC
    timestamp: str
    data: Any = None

    def __post_init__(self) -> None:
        if self.type not in list(SignalType):
            raise error("value_invalid", name="type", reason=f"{self.type!r} is not a signal type")
        msgspec.structs.force_setattr(self, "type", SignalType(self.type))
        if type(self.state) is not str or not self.state:
            raise error("value_invalid", name="state", reason="it is not a non-empty string")
        validate_subject(self.endpoint_subject)
        parse_utc(self.timestamp)
