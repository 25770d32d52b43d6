"""The bus: durable mailboxes and safety rules for agents on one machine."""

from posthouse.bus.bus import Bus
from posthouse.bus.options import Retention
from posthouse.bus.results import (
    AckAnswer,
    BreakerView,
    Endpoint,
    IndexRow,
    Letter,
    Metrics,
    PublishRefused,
    PublishResult,
    Reason,
    Rejection,
    RequestTimeout,
    SubscriptionView,
)
from posthouse.bus.signals import TooManyListenersWarning
from posthouse.bus.taps import Tap

__all__ = [
    "AckAnswer",
    "BreakerView",
    "Bus",
    "Endpoint",
    "IndexRow",
    "Letter",
    "Metrics",
    "PublishRefused",
    "PublishResult",
    "Reason",
    "Rejection",
    "RequestTimeout",
    "Retention",
    "SubscriptionView",
    "Tap",
    "TooManyListenersWarning",
]
