"""What the operator decides about the Pinch wire."""

from __future__ import annotations

from dataclasses import dataclass

from posthouse.model.bucket import Rate
from posthouse.model.limits import (
    PINCH_BURST,
    PINCH_CHALLENGE_S,
    PINCH_PING_S,
    PINCH_PONG_S,
    PINCH_RATE_PER_S,
    RECEIVE_WINDOW_MAX,
)
from posthouse.relay.pinch.origins import ANY_ORIGIN, Origins

TOKENS_PER_ENVELOPE = 1_000  # so that a rate below one a second is exact arithmetic too


@dataclass(frozen=True)
class PinchSettings:
    """Bounds and times of the Pinch wire; queues have their own settings."""

    #: the relay's name in addresses
    host: str
    #: envelopes per second and address
    rate_per_s: float = PINCH_RATE_PER_S
    burst: int = PINCH_BURST
    origins: Origins = ANY_ORIGIN
    ping_s: float = float(PINCH_PING_S)
    pong_s: float = float(PINCH_PONG_S)
    challenge_s: float = float(PINCH_CHALLENGE_S)
    #: unconfirmed messages on one connection; agents confirm one by one, and some read everything first
    window: int = RECEIVE_WINDOW_MAX
    #: how long the first envelopes wait for proof that AUTH_RESULT was read
    greeting_s: float = 1.0

    @property
    def rate(self) -> Rate:
        """The rate in tokens."""
        return Rate(max(1, round(self.rate_per_s * TOKENS_PER_ENVELOPE)), self.burst * TOKENS_PER_ENVELOPE)
