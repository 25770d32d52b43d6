"""The settings of a relay: where it listens and stores, its rates, queues and bounds, and the Pinch wire.

They are part of the registry in posthouse.model.settings, in the order the reference shows them.
"""

from __future__ import annotations

from posthouse.model import limits
from posthouse.model.pinch import PINCH_SETTINGS
from posthouse.model.setting import Setting

_MAX = 1_000_000_000
_ADDRESS: tuple[Setting, ...] = (
    Setting("relay.listen", str, "127.0.0.1:7420", "Address and port to listen on."),
    Setting("relay.data_dir", str, "~/.posthouse/relay", "Directory with relay.db and the key of the relay."),
    Setting(
        "relay.store",
        str,
        None,
        "URL of a PostgreSQL database, postgresql://USER@HOST/DATABASE. Unset: relay.db in the data directory.",
    ),
    Setting(
        "relay.advertise",
        str,
        None,
        "URL at which other relays on the same relay.store reach this one. Unset: no others.",
    ),
    Setting(
        "relay.high_water",
        str,
        None,
        "File of the high-water mark, best on another disk than the data directory. Unset: relay.high-water in it.",
    ),
    Setting("relay.tls_cert", str, None, "File with the TLS certificate chain (PEM)."),
    Setting("relay.tls_key", str, None, "File with the TLS private key (PEM)."),
    Setting(
        "relay.behind_proxy",
        bool,
        False,
        "A proxy in front terminates TLS; closes main, needs relay.hosts, allows other addresses than loopback.",
    ),
    Setting(
        "relay.trusted_proxies",
        str,
        None,
        "Addresses or networks of proxies, separated by commas, whose Forwarded or X-Forwarded-For names the client.",
    ),
    Setting("relay.hosts", str, None, "Host names that clients use, separated by commas; setting it closes main, too."),
    Setting(
        "relay.origins", str, None, "Origins of web pages that may use the relay, separated by commas.", is_live=True
    ),
    Setting(
        "relay.metrics_listen",
        str,
        None,
        "Loopback address and port, or path of a Unix socket, that serves /metrics without a token.",
    ),
    Setting(
        "relay.metrics_token_file",
        str,
        None,
        "Private file with a token for /metrics on the main port; it opens nothing else.",
    ),
    Setting(
        "relay.otlp_url",
        str,
        None,
        "Trace collector, http://HOST:PORT; the relay adds its spans to messages that their senders trace.",
    ),
    Setting(
        "relay.log_file",
        str,
        None,
        "File for the log of the relay, rotated by size; without it the log goes to stderr.",
    ),
    Setting(
        "relay.followers",
        str,
        None,
        "Node ids, separated by commas, that may follow this relay and so read everything it has.",
        is_live=True,
    ),
    Setting(
        "relay.mirrors",
        str,
        None,
        "Nodes that may mirror meshes, separated by commas: NODE for all meshes, or NODE/MESH.",
        is_live=True,
    ),
    Setting("relay.admin", str, None, "Node id that administers the main mesh."),
    Setting("relay.main_open", bool, True, "Create the main mesh open to every local key, where that is safe."),
)
_RATES: tuple[Setting, ...] = (
    Setting(
        "relay.event_rate", int, limits.EVENT_RATE_PER_S, "Steady rate of events per key.", "1/s", 1, _MAX, is_live=True
    ),
    Setting(
        "relay.event_burst",
        int,
        limits.EVENT_BURST,
        "Maximum burst of events per key.",
        "events",
        1,
        _MAX,
        is_live=True,
    ),
    Setting(
        "relay.ephemeral_rate",
        int,
        limits.EPHEMERAL_RATE_PER_S,
        "Steady rate of ephemeral events per key.",
        "1/s",
        1,
        _MAX,
        is_live=True,
    ),
    Setting(
        "relay.ephemeral_burst",
        int,
        limits.EPHEMERAL_BURST,
        "Maximum burst of ephemeral events per key.",
        "events",
        1,
        _MAX,
        is_live=True,
    ),
)
_QUEUES: tuple[Setting, ...] = (
    Setting(
        "relay.queue_max",
        int,
        limits.QUEUE_MAX,
        "Maximum unconfirmed messages per recipient and mesh.",
        "rows",
        1,
        _MAX,
    ),
    Setting(
        "relay.queue_ttl_s", int, limits.QUEUE_TTL_S, "Time after which an unconfirmed message expires.", "s", 1, _MAX
    ),
    Setting(
        "relay.confirm_timeout_s",
        float,
        float(limits.CONFIRM_TIMEOUT_S),
        "Time without a confirmation after which the relay closes a reader session.",
        "s",
        0.01,
        3_600,
    ),
    Setting(
        "relay.connection_policy",
        str,
        "prefer_newest",
        "prefer_newest: a second reader session of a node closes the first; allow_concurrent: both stay open.",
        choices=("prefer_newest", "allow_concurrent"),
    ),
    Setting(
        "relay.record_retention_days",
        int,
        limits.RECORD_RETENTION_DAYS,
        "Retention of dedupe records, unless they are permanent.",
        "days",
        limits.RECORD_RETENTION_MIN_DAYS,
        36_500,
    ),
    Setting(
        "relay.known_ids_days",
        int,
        limits.KNOWN_IDS_DAYS,
        "How long ids of removed events stay known; the relay refuses older events.",
        "days",
        limits.KNOWN_IDS_MIN_DAYS,
        36_500,
    ),
    Setting("relay.records_permanent", bool, False, "Keep dedupe records forever."),
    Setting(
        "relay.wait_queue_max", int, limits.WAIT_QUEUE_MAX, "Clients that may wait for one lock.", "waiters", 1, _MAX
    ),
)
_BOUNDS: tuple[Setting, ...] = (
    Setting(
        "relay.stream_buffer_events",
        int,
        limits.STREAM_BUFFER_EVENTS,
        "Events buffered for a slow reader.",
        "events",
        1,
        _MAX,
    ),
    Setting(
        "relay.stream_buffer_bytes",
        int,
        limits.STREAM_BUFFER_BYTES,
        "Bytes buffered for a slow reader.",
        "bytes",
        64 * limits.KIB,
        _MAX,
    ),
    Setting(
        "relay.outbound_max_bytes",
        int,
        limits.OUTBOUND_MAX_BYTES,
        "Maximum unsent bytes of all connections together; above it the relay drops the slowest readers.",
        "bytes",
        limits.MIB,
        limits.SAFE_INTEGER_MAX,
    ),
    Setting(
        "relay.follow_max_bytes",
        int,
        64 * limits.MIB,
        "Bytes of changes kept for followers; one that lacks older changes takes a new copy.",
        "bytes",
        64 * limits.KIB,
        limits.SAFE_INTEGER_MAX,
    ),
    Setting(
        "relay.follow_absent_s",
        float,
        3_600.0,
        "How long changes are recorded while no follower asks for them.",
        "s",
        0.1,
        _MAX,
    ),
    Setting("relay.connections_max", int, 4_096, "Authenticated connections at once.", "connections", 1, _MAX),
    Setting(
        "relay.connections_per_address",
        int,
        2_048,
        "Authenticated connections of one address at once; an IPv6 network of 64 bits is one address.",
        "connections",
        1,
        _MAX,
    ),
    Setting(
        "relay.connections_per_node",
        int,
        1_024,
        "Authenticated connections of one key at once.",
        "connections",
        1,
        _MAX,
    ),
    Setting("relay.ping_s", float, float(limits.STREAM_PING_S), "Interval of pings on a stream.", "s", 0.05, 3_600),
    Setting(
        "relay.writer_max_items", int, 10_000, "Maximum items that wait for the group-commit writer.", "items", 1, _MAX
    ),
    Setting(
        "relay.writer_max_bytes",
        int,
        64 * limits.MIB,
        "Maximum bytes that wait for the group-commit writer.",
        "bytes",
        limits.MIB,
        100 * _MAX,
    ),
)
RELAY: tuple[Setting, ...] = _ADDRESS + _RATES + _QUEUES + _BOUNDS + PINCH_SETTINGS
