"""What every measurement of sending shares: how much is done, and the settings.

Rates and caps stay switched on; they are raised out of the way, and the report prints them.
"""

from __future__ import annotations

from dataclasses import dataclass

IN_FLIGHT = 64
BODY_CHARS = 200
DESTINATIONS = 10
#: settings of the measured relay that are not the default
RELAY_SETTINGS: dict[str, int] = {
    "relay.event_rate": 1_000_000_000,
    "relay.event_burst": 1_000_000_000,
    "relay.queue_max": 1_000_000,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done; `QUICK` is for tests and a first look."""

    rounds: int = 5
    #: sends per round with 64 in flight
    sends: int = 6_000
    #: sends per round one at a time
    singles: int = 300
    #: messages from one host to the other, one after the other
    letters: int = 200
    #: rows that wait when the relay comes back
    backlog: int = 10_000
    #: times the backlog is made and drained
    drains: int = 3


QUICK = Scale(rounds=1, sends=256, singles=30, letters=10, backlog=300, drains=1)
