"""The standard payload: a typed convenience over the free JSON payload of an envelope.

A publisher may send any JSON value; agents that want to understand each other use this shape. Only the shape is
checked here, nothing is looked up or sent.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec

from posthouse.model.errors import error

NonNegative = Annotated[int, msgspec.Meta(ge=0)]


class Performative(enum.StrEnum):
    """What a message wants to do in a conversation."""

    REQUEST = "request"
    INFORM = "inform"
    QUERY = "query"
    PROPOSE = "propose"
    ACCEPT = "accept"
    REJECT = "reject"
    CFP = "cfp"
    FAILURE = "failure"


class ChannelType(enum.StrEnum):
    """Where a conversation takes place."""

    DM = "dm"
    GROUP = "group"
    CHANNEL = "channel"
    THREAD = "thread"


class Attachment(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A file that goes with a message; the bus carries its path, not its bytes."""

    path: str
    filename: str
    mime_type: str
    size: NonNegative | None = None


class ResponseContext(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How an answer should look where it is shown."""

    platform: str
    max_length: NonNegative | None = None
    supported_formats: tuple[str, ...] | None = None
    instructions: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a message cost to make; cost figures are computed from it."""

    model: str
    input_tokens: NonNegative
    output_tokens: NonNegative
    cost_usd: Annotated[float, msgspec.Meta(ge=0)]


class StandardPayload(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
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
    try:
        return msgspec.convert(value, StandardPayload)
    except msgspec.ValidationError as fault:
        raise error("value_invalid", name="payload", reason=str(fault)) from fault
