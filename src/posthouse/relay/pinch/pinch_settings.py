"""Settings of the Pinch protocol, including the web origins that may connect.

Origins are patterns separated by commas: a host or a whole origin, with `*` for any characters. They add to the origins
that the guard allows on every path of the relay. A client without an Origin header is not a browser and may always
connect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from posthouse.model import limits
from posthouse.model.errors import error
from posthouse.model.rate import Rate

#: the paths on which relay.pinch_origins holds
PINCH_PATHS = frozenset({"/ws", "/health", "/agents/register", "/agents/claim", "/claim"})
_PATTERN = re.compile(r"([a-z][a-z0-9+.-]*://)?[A-Za-z0-9*.:\[\]_-]+", re.IGNORECASE)


@dataclass(frozen=True)
class Origins:
    """A list of patterns; an empty list matches no origin."""

    patterns: Sequence[str] = ()

    def allow(self, origin: str) -> bool:
        """Return True if a pattern matches an origin."""
        whole = origin.lower()
        return any(fnmatchcase(whole if "://" in each else _host(whole), each) for each in self.patterns)


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


NO_ORIGINS = Origins()


def parse_patterns(text: str) -> Origins:
    """Parse a list of patterns, or raise pinch_origins_invalid."""
    patterns = [part.strip().lower() for part in text.split(",")]
    for pattern in patterns:
        if _PATTERN.fullmatch(pattern) is None:
            raise error("pinch_origins_invalid", reason=f"{pattern!r} is neither an origin nor a host")
    return Origins(tuple(patterns))


TOKENS_PER_ENVELOPE = 1_000  # keeps rates below one envelope per second exact


@dataclass(frozen=True)
class PinchSettings:
    """Limits and times of Pinch connections; queues have their own settings."""

    #: the name of the relay in addresses
    host: str
    #: envelopes per second and address
    rate_per_s: float = limits.PINCH_RATE_PER_S
    burst: int = limits.PINCH_BURST
    origins: Origins = NO_ORIGINS
    ping_s: float = float(limits.PINCH_PING_S)
    pong_s: float = float(limits.PINCH_PONG_S)
    challenge_s: float = float(limits.PINCH_CHALLENGE_S)
    #: unconfirmed messages on one connection; some agents read everything before they confirm
    window: int = limits.RECEIVE_WINDOW_MAX
    #: how long delivery waits at most for the pongs that prove that the agent reads and stays
    greeting_s: float = 1.0
    #: an agent that is still connected after this time stays; the skill's short tools are gone by then
    settle_s: float = 0.2

    @property
    def rate(self) -> Rate:
        """The rate in tokens."""
        return Rate(max(1, round(self.rate_per_s * TOKENS_PER_ENVELOPE)), self.burst * TOKENS_PER_ENVELOPE)
