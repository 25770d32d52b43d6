"""What every measurement of queues shares: how much is done, and the relay's settings.

Rates and caps stay switched on; they are raised out of the way, and the report prints them.
"""

from __future__ import annotations

from dataclasses import dataclass

WINDOW = 500
QUEUE = 1_000
READERS = 50
SMALL_QUEUE = 10
IN_FLIGHT = 64
#: list frames before it is the other's turn, when sending is compared with publishing: at least, and fewer than
TURN = (4, 17)
BODY_CHARS = 200
#: settings of the measured relay that are not the default; a queue of 1,000 is within the default cap
SETTINGS: dict[str, int] = {
    "relay.event_rate": 1_000_000_000,
    "relay.event_burst": 1_000_000_000,
    "relay.queue_max": 10_000,
}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done; `QUICK` is for tests and a first look."""

    rounds: int = 5
    #: messages queued for each reader
    queue: int = QUEUE
    readers: int = READERS
    #: rounds with all readers
    crowd_rounds: int = 3
    #: messages per round when sending is compared with publishing
    sends: int = 6_000
    send_rounds: int = 30


QUICK = Scale(rounds=1, queue=100, readers=4, crowd_rounds=1, sends=256, send_rounds=1)
