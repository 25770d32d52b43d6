"""Signals: short-lived hints between agents (typing, presence, back-pressure) that never touch disk."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.subjects import validate_subject
from posthouse.model.timestamps import parse_utc


class SignalType(enum.StrEnum):
    """What a signal tells."""

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
        if not isinstance(self.type, SignalType):
            raise error("value_invalid", name="type", reason=f"{self.type!r} is not a signal type")
        if type(self.state) is not str or not self.state:
            raise error("value_invalid", name="state", reason="it is not a text, or empty")
        validate_subject(self.endpoint_subject)
        parse_utc(self.timestamp)


def read_signal(value: Any) -> Signal:
    """Return a signal from plain JSON values, or raise value_invalid."""
    try:
        return msgspec.convert(value, Signal)
    except PosthouseError:
        raise
    except msgspec.ValidationError as fault:
        raise error("value_invalid", name="signal", reason=str(fault)) from fault
