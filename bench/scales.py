"""The amount of work of each measurement (full and quick), and the limits and settings it runs with.

Safety rules, rates and caps stay enabled; their limits are raised, and every report prints them.
"""

from __future__ import annotations

from dataclasses import dataclass

from posthouse.model.reliability import Backpressure, CircuitBreaker, RateLimit, Reliability


@dataclass(frozen=True, slots=True)
class LocksScale:
    """The amount of work."""

    rounds: int = 21
    #: pairs per round of one client; 16 clients together do four times as many
    pairs: int = 300


QUICK_LOCKS = LocksScale(rounds=2, pairs=40)
PAYLOAD = {"content": "x" * 240}  # 256 bytes of JSON
PAYLOAD_BYTES = 256
SUBJECT = "bench.target"
SENDER = "bench.sender"
BUS_LIMITS = Reliability(
    rate_limit=RateLimit(max_per_window=1_000_000_000),
    circuit_breaker=CircuitBreaker(),
    backpressure=Backpressure(max_mailbox_size=100_000_000),
)


@dataclass(frozen=True, slots=True)
class BusScale:
    """The amount of work; QUICK_BUS is for tests and a first impression."""

    #: per round
    messages: int = 500
    rounds: int = 21
    latency_messages: int = 1_000
    waiting: int = 10_000
    rebuild_files: int = 10_000
    fan_out_publishes: int = 10
    memory_publishes: int = 1_000_000


QUICK_BUS = BusScale(
    messages=200,
    rounds=5,
    latency_messages=100,
    waiting=1_000,
    rebuild_files=1_000,
    fan_out_publishes=3,
    memory_publishes=4_000,
)
IN_FLIGHT = 64
SUBSCRIBERS = 100
PAGE = 500
KIND = 1
#: settings of the measured relay that are not the default
RELAY_SETTINGS: dict[str, int] = {
    "relay.event_rate": 1_000_000_000,
    "relay.event_burst": 1_000_000_000,
}


@dataclass(frozen=True, slots=True)
class RelayScale:
    """The amount of work; the quick one is for tests and a first impression."""

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


@dataclass(frozen=True, slots=True)
class ClusterScale:
    """The amount of work of relays on PostgreSQL."""

    rounds: int = 5
    #: events per round and relay with 64 in flight
    events: int = 4_000
    #: events per round one at a time
    singles: int = 300
    #: events whose way from one relay to a subscriber of another is timed
    passed: int = 200


QUICK_CLUSTER = ClusterScale(rounds=2, events=640, singles=30, passed=20)
QUICK_RELAY = RelayScale(rounds=2, events=640, singles=50, fan_out_events=256, stored=20_000, queries=10)
WINDOW = 500
QUEUE = 1_000
READERS = 50
SMALL_QUEUE = 10
#: list frames per turn when sending is compared with publishing: minimum, and exclusive maximum
TURN = (4, 17)
BODY_CHARS = 200
#: settings of the measured relay that are not the default
DRAIN_SETTINGS: dict[str, int] = {
    "relay.event_rate": 1_000_000_000,
    "relay.event_burst": 1_000_000_000,
    "relay.queue_max": 10_000,
}


@dataclass(frozen=True, slots=True)
class DrainScale:
    """The amount of work; the quick one is for tests and a first impression."""

    rounds: int = 5
    #: messages queued for each reader
    queue: int = QUEUE
    readers: int = READERS
    #: rounds with all readers
    all_readers_rounds: int = 3
    #: messages per round when sending is compared with publishing
    sends: int = 6_000
    send_rounds: int = 30


QUICK_DRAIN = DrainScale(rounds=1, queue=100, readers=4, all_readers_rounds=1, sends=256, send_rounds=1)
DESTINATIONS = 10
#: settings of the measured relay that are not the default
SEND_SETTINGS: dict[str, int] = {
    "relay.event_rate": 1_000_000_000,
    "relay.event_burst": 1_000_000_000,
    "relay.queue_max": 1_000_000,
}


@dataclass(frozen=True, slots=True)
class SendScale:
    """The amount of work; the quick one is for tests and a first impression."""

    rounds: int = 5
    #: sends per round with 64 in flight
    sends: int = 6_000
    #: sends per round one at a time
    singles: int = 300
    #: messages from one host to the other, one after the other
    messages: int = 200
    #: rows that wait when the relay starts again
    backlog: int = 10_000
    #: number of times the backlog is filled and drained
    drains: int = 3


QUICK_SEND = SendScale(rounds=1, sends=256, singles=30, messages=10, backlog=300, drains=1)
ROW_BYTES = 256  # of a record, with all columns as text
MASTER = "local[2]"


@dataclass(frozen=True, slots=True)
class PipelineScale:
    """The amount of work; the quick one is for tests and a first impression."""

    #: records of the relay's file
    rows: int = 1_000_000
    #: records of the first, small run; the large one has ten times as many
    growth_rows: int = 300_000
    #: runs with a few new records after each whole run; the first of them still compile their plans
    new_runs: int = 5
    #: signed events for the audit's signature stage
    events: int = 60_000
    rounds: int = 3


QUICK_PIPELINE = PipelineScale(rows=30_000, growth_rows=3_000, events=2_000, rounds=1)
