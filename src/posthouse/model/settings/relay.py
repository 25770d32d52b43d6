"""Settings of the relay: where it listens, what it keeps, and how much it takes."""

from __future__ import annotations

from posthouse.model.limits import (
    CONFIRM_TIMEOUT_S,
    EPHEMERAL_BURST,
    EPHEMERAL_RATE_PER_S,
    EVENT_BURST,
    EVENT_RATE_PER_S,
    KIB,
    MIB,
    PINCH_BURST,
    PINCH_RATE_PER_S,
    QUEUE_MAX,
    QUEUE_TTL_S,
    RECORD_RETENTION_DAYS,
    RECORD_RETENTION_MIN_DAYS,
    STREAM_BUFFER_BYTES,
    STREAM_BUFFER_EVENTS,
    STREAM_PING_S,
    WAIT_QUEUE_MAX,
)
from posthouse.model.settings.setting import Setting

_MOST = 1_000_000_000

_PLACE: tuple[Setting, ...] = (
    Setting("relay.listen", str, "127.0.0.1:7420", "Address and port to listen on."),
    Setting("relay.data_dir", str, "~/.posthouse/relay", "Directory of relay.db and the relay's key."),
    Setting("relay.tls_cert", str, None, "File with the TLS certificate chain."),
    Setting("relay.tls_key", str, None, "File with the TLS private key."),
    Setting("relay.behind_proxy", bool, False, "A proxy in front ends TLS; allows listening beyond loopback."),
    Setting("relay.admin", str, None, "Node id that administers the main mesh."),
)

_RATES: tuple[Setting, ...] = (
    Setting("relay.event_rate", int, EVENT_RATE_PER_S, "Steady rate of events per key.", "1/s", 1, _MOST),
    Setting("relay.event_burst", int, EVENT_BURST, "Events a key may save up.", "events", 1, _MOST),
    Setting(
        "relay.ephemeral_rate", int, EPHEMERAL_RATE_PER_S, "Steady rate of ephemeral events per key.", "1/s", 1, _MOST
    ),
    Setting("relay.ephemeral_burst", int, EPHEMERAL_BURST, "Ephemeral events a key may save up.", "events", 1, _MOST),
)

_QUEUES: tuple[Setting, ...] = (
    Setting("relay.queue_max", int, QUEUE_MAX, "Unconfirmed messages per recipient and mesh.", "rows", 1, _MOST),
    Setting("relay.queue_ttl_s", int, QUEUE_TTL_S, "How long a message waits for its reader.", "s", 1, _MOST),
    Setting(
        "relay.confirm_timeout_s",
        float,
        float(CONFIRM_TIMEOUT_S),
        "Time without progress after which a mailbox connection is closed.",
        "s",
        0.01,
        3_600,
    ),
    Setting(
        "relay.connection_policy",
        str,
        "prefer_newest",
        "What a second open mailbox of a node does to the first.",
        choices=("prefer_newest", "allow_concurrent"),
    ),
    Setting(
        "relay.record_retention_days",
        int,
        RECORD_RETENTION_DAYS,
        "How long idempotency records are kept, unless permanent.",
        "days",
        RECORD_RETENTION_MIN_DAYS,
        36_500,
    ),
    Setting("relay.records_permanent", bool, False, "Keep idempotency records for ever."),
    Setting("relay.wait_queue_max", int, WAIT_QUEUE_MAX, "Clients that may wait for locks.", "waiters", 1, _MOST),
)

_BOUNDS: tuple[Setting, ...] = (
    Setting(
        "relay.stream_buffer_events", int, STREAM_BUFFER_EVENTS, "Events a slow reader may lag.", "events", 1, _MOST
    ),
    Setting(
        "relay.stream_buffer_bytes", int, STREAM_BUFFER_BYTES, "Bytes a slow reader may lag.", "bytes", 64 * KIB, _MOST
    ),
    Setting("relay.ping_s", float, float(STREAM_PING_S), "Time between pings on a stream.", "s", 0.05, 3_600),
    Setting("relay.writer_max_items", int, 10_000, "Items that may wait for the writer.", "items", 1, _MOST),
    Setting("relay.writer_max_bytes", int, 64 * MIB, "Bytes that may wait for the writer.", "bytes", MIB, 100 * _MOST),
)

_PINCH: tuple[Setting, ...] = (
    Setting("relay.pinch_host", str, None, "Name of this relay in Pinch addresses; with it the relay speaks Pinch."),
    Setting(
        "relay.pinch_rate", float, PINCH_RATE_PER_S, "Steady rate of Pinch envelopes per address.", "1/s", 0.001, 1e6
    ),
    Setting(
        "relay.pinch_burst", int, PINCH_BURST, "Pinch envelopes an address may save up.", "envelopes", 1, 1_000_000
    ),
    Setting("relay.pinch_origins", str, None, "Web origins that may open a Pinch connection, separated by commas."),
)

RELAY: tuple[Setting, ...] = _PLACE + _RATES + _QUEUES + _BOUNDS + _PINCH
