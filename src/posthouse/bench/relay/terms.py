"""What every measurement of the relay shares: how much is done, and the relay's settings.

Rates and caps stay switched on; they are raised out of the way, and the report prints them.
"""

from __future__ import annotations

from dataclasses import dataclass

IN_FLIGHT = 64
SUBSCRIBERS = 100
PAGE = 500
KIND = 1
#: settings of the measured relay that are not the default
SETTINGS: dict[str, int] = {
    "relay.event_rate": 1_000_000_000,
    "relay.event_burst": 1_000_000_000,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done; `QUICK` is for tests and a first look."""

    rounds: int = 5
    #: events per round with 64 in flight
    events: int = 6_000
    #: events per round one at a time
    singles: int = 400
    #: events published to the subscribers, per round
    fan_out_events: int = 3_000
    #: events in the large store
    stored: int = 1_000_000
    #: queries per shape
    queries: int = 60


QUICK = Scale(rounds=2, events=640, singles=50, fan_out_events=256, stored=20_000, queries=10)
