"""Every setting of posthouse: name, type, default, bounds and help, in the order the reference shows them.

The name `relay.queue_max` is also the environment variable POSTHOUSE_RELAY_QUEUE_MAX and the flag --queue-max. Rate
limit, breaker and back-pressure of the bus are not settings: they are in the bus's config.json, which a running bus
reads again when it changes. A test fails for a setting that no code reads. If you add a setting: 1. its area below,
2. the code that reads it, 3. `make docs`.
"""

from __future__ import annotations

from posthouse.model.limits import (
    BUDGET_CALLS,
    BUDGET_MAX_HOPS,
    BUDGET_TTL_MS,
    BUS_MAX_PAYLOAD_BYTES,
    BUS_PAYLOAD_BYTES_MAX,
    CONFIRM_TIMEOUT_S,
    EPHEMERAL_BURST,
    EPHEMERAL_RATE_PER_S,
    EVENT_BURST,
    EVENT_RATE_PER_S,
    GB,
    HANDLER_TIMEOUT_S,
    JOURNAL_KEEP_DAYS,
    JOURNAL_MAX_BYTES,
    KIB,
    MIB,
    OUTBOUND_MAX_BYTES,
    PINCH_BURST,
    PINCH_RATE_PER_S,
    QUEUE_MAX,
    QUEUE_TTL_S,
    RECORD_RETENTION_DAYS,
    RECORD_RETENTION_MIN_DAYS,
    SAFE_INTEGER_MAX,
    STREAM_BUFFER_BYTES,
    STREAM_BUFFER_EVENTS,
    STREAM_PING_S,
    WAIT_QUEUE_MAX,
)
from posthouse.model.setting import Setting

_BUS: tuple[Setting, ...] = (
    Setting("bus.dir", str, "~/.posthouse/bus", "Data directory of the bus."),
    Setting(
        "bus.durability",
        str,
        "process",
        "What a completed publish survives: process: the crash of any process; power: also a power loss.",
        choices=("process", "power"),
    ),
    Setting(
        "bus.cycle_rule",
        str,
        "hops",
        "hops: hops, calls and lifetime bound a line of messages; chain: it also reaches each endpoint at most once.",
        choices=("hops", "chain"),
    ),
    Setting(
        "bus.max_hops",
        int,
        BUDGET_MAX_HOPS,
        "Maximum hops of a line of messages, each caused by the one before; answers cost none.",
        "hops",
        1,
        1_000,
    ),
    Setting("bus.default_ttl_ms", int, BUDGET_TTL_MS, "Lifetime of a message.", "ms", 1, SAFE_INTEGER_MAX),
    Setting(
        "bus.default_call_budget",
        int,
        BUDGET_CALLS,
        "Maximum length of a line of messages; answers cost none. Siblings, such as a fan-out, are not counted.",
        "calls",
        0,
        1_000_000,
    ),
    Setting(
        "bus.handler_timeout_s",
        float,
        float(HANDLER_TIMEOUT_S),
        "Maximum time of a handler for one message, unless its subscription sets another.",
        "s",
        0.001,
        86_400,
    ),
    Setting(
        "bus.max_attempts",
        int,
        3,
        "How often a message is started whose process ends before the handler does; then it is a dead letter.",
        "",
        1,
        1_000,
    ),
    Setting(
        "bus.max_listeners",
        int,
        100,
        "Number of signal listeners above which the bus logs a warning.",
        "listeners",
        1,
        1_000_000,
    ),
    Setting(
        "bus.max_payload_bytes",
        int,
        BUS_MAX_PAYLOAD_BYTES,
        "Maximum size of a payload, as JSON.",
        "bytes",
        1,
        BUS_PAYLOAD_BYTES_MAX,
    ),
)
_MAX = 1_000_000_000
_RELAY_ADDRESS: tuple[Setting, ...] = (
    Setting("relay.listen", str, "127.0.0.1:7420", "Address and port to listen on."),
    Setting("relay.data_dir", str, "~/.posthouse/relay", "Directory with relay.db and the key of the relay."),
    Setting(
        "relay.store",
        str,
        None,
        "URL of a PostgreSQL database, postgresql://USER@HOST/DATABASE. Unset: relay.db in the data directory.",
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
        "relay.log_file",
        str,
        None,
        "File for the log of the relay, rotated by size; without it the log goes to stderr.",
    ),
    Setting("relay.admin", str, None, "Node id that administers the main mesh."),
    Setting("relay.main_open", bool, True, "Create the main mesh open to every local key, where that is safe."),
)
_RELAY_RATES: tuple[Setting, ...] = (
    Setting("relay.event_rate", int, EVENT_RATE_PER_S, "Steady rate of events per key.", "1/s", 1, _MAX, is_live=True),
    Setting("relay.event_burst", int, EVENT_BURST, "Maximum burst of events per key.", "events", 1, _MAX, is_live=True),
    Setting(
        "relay.ephemeral_rate",
        int,
        EPHEMERAL_RATE_PER_S,
        "Steady rate of ephemeral events per key.",
        "1/s",
        1,
        _MAX,
        is_live=True,
    ),
    Setting(
        "relay.ephemeral_burst",
        int,
        EPHEMERAL_BURST,
        "Maximum burst of ephemeral events per key.",
        "events",
        1,
        _MAX,
        is_live=True,
    ),
)
_RELAY_QUEUES: tuple[Setting, ...] = (
    Setting("relay.queue_max", int, QUEUE_MAX, "Maximum unconfirmed messages per recipient and mesh.", "rows", 1, _MAX),
    Setting("relay.queue_ttl_s", int, QUEUE_TTL_S, "Time after which an unconfirmed message expires.", "s", 1, _MAX),
    Setting(
        "relay.confirm_timeout_s",
        float,
        float(CONFIRM_TIMEOUT_S),
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
        RECORD_RETENTION_DAYS,
        "Retention of dedupe records, unless they are permanent.",
        "days",
        RECORD_RETENTION_MIN_DAYS,
        36_500,
    ),
    Setting("relay.records_permanent", bool, False, "Keep dedupe records forever."),
    Setting("relay.wait_queue_max", int, WAIT_QUEUE_MAX, "Clients that may wait for one lock.", "waiters", 1, _MAX),
)
_RELAY_BOUNDS: tuple[Setting, ...] = (
    Setting(
        "relay.stream_buffer_events", int, STREAM_BUFFER_EVENTS, "Events buffered for a slow reader.", "events", 1, _MAX
    ),
    Setting(
        "relay.stream_buffer_bytes",
        int,
        STREAM_BUFFER_BYTES,
        "Bytes buffered for a slow reader.",
        "bytes",
        64 * KIB,
        _MAX,
    ),
    Setting(
        "relay.outbound_max_bytes",
        int,
        OUTBOUND_MAX_BYTES,
        "Maximum unsent bytes of all connections together; above it the relay drops the slowest readers.",
        "bytes",
        MIB,
        SAFE_INTEGER_MAX,
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
    Setting("relay.ping_s", float, float(STREAM_PING_S), "Interval of pings on a stream.", "s", 0.05, 3_600),
    Setting(
        "relay.writer_max_items", int, 10_000, "Maximum items that wait for the group-commit writer.", "items", 1, _MAX
    ),
    Setting(
        "relay.writer_max_bytes",
        int,
        64 * MIB,
        "Maximum bytes that wait for the group-commit writer.",
        "bytes",
        MIB,
        100 * _MAX,
    ),
)
_RELAY_PINCH: tuple[Setting, ...] = (
    Setting(
        "relay.pinch_host", str, None, "Host name of this relay in Pinch addresses; setting it enables the Pinch wire."
    ),
    Setting(
        "relay.pinch_rate", float, PINCH_RATE_PER_S, "Steady rate of Pinch envelopes per address.", "1/s", 0.001, 1e6
    ),
    Setting(
        "relay.pinch_burst",
        int,
        PINCH_BURST,
        "Maximum burst of Pinch envelopes per address.",
        "envelopes",
        1,
        1_000_000,
    ),
    Setting(
        "relay.pinch_origins",
        str,
        None,
        "Origins or hosts, with *, whose web pages may use the Pinch wire; separated by commas.",
    ),
)
_RELAY: tuple[Setting, ...] = _RELAY_ADDRESS + _RELAY_RATES + _RELAY_QUEUES + _RELAY_BOUNDS + _RELAY_PINCH
_CLIENT: tuple[Setting, ...] = (
    Setting(
        "client.relay",
        str,
        "127.0.0.1:7420",
        "Address of the relay (HOST:PORT or a URL), for meshes whose relay is not known from an invite.",
    ),
    Setting("client.tls_ca", str, None, "File with certificates of additional trusted authorities (PEM)."),
    Setting(
        "client.allow_plain",
        bool,
        False,
        "Allow connections to other machines without TLS, inside a network you trust.",
    ),
    Setting("client.timeout_s", float, 60.0, "Timeout of a publish.", "s", 0.1, 86_400),
)
_DAEMON: tuple[Setting, ...] = (
    Setting(
        "outbox.max_age_h",
        int,
        None,
        "Time after which an unsent message is dead; default 168, less if the relay keeps dedupe records for less.",
        "hours",
        1,
        87_600,
    ),
    Setting("outbox.max_bytes", int, 5 * GB, "Maximum size of the outbox.", "bytes", MIB, SAFE_INTEGER_MAX),
    Setting("inbox.keep_days", int, 30, "Retention of messages in the inbox, after they were read.", "days", 1, 36_500),
    Setting(
        "clone.policy",
        str,
        "refuse",
        "What the daemon does if its identity was created on another machine.",
        choices=("refuse", "warn", "allow"),
    ),
    Setting("daemon.bridge", bool, True, "Bridge messages between the mesh and the bus of this host."),
)
_MCP: tuple[Setting, ...] = (
    Setting("mcp.port", int, 0, "Loopback port of the daemon, for MCP over HTTP; 0 picks a free port.", "", 0, 65_535),
    Setting(
        "mcp.wait_max_s",
        int,
        50,
        "Maximum wait of one tool call; many agents cancel calls after 60 s.",
        "s",
        1,
        600,
    ),
)
_PIPELINE: tuple[Setting, ...] = (
    Setting("pipeline.lake", str, "~/.posthouse/lake", "Directory of the lake, or s3://BUCKET/PREFIX."),
    Setting(
        "pipeline.master",
        str,
        "local[*]",
        "Spark master: local[N], local[*], the URL of a cluster, or sc://HOST:PORT of Spark Connect.",
    ),
    Setting(
        "pipeline.spark_conf",
        str,
        None,
        "Settings of Spark, one key=value per line; --spark-conf adds to them and overrides them.",
    ),
    Setting(
        "pipeline.executor_python",
        str,
        None,
        "Python of Spark's executors [default: PYSPARK_PYTHON, else the Python of the command].",
    ),
    Setting("pipeline.metrics_file", str, None, "File that a run writes metrics to, for the node exporter."),
    Setting("pipeline.openlineage_url", str, None, "Server that gets OpenLineage events of runs."),
    Setting("pipeline.driver_memory_mb", int, 1024, "Memory of the Spark driver.", "MB", 512, 1_048_576),
    Setting("pipeline.publishers", str, None, "Nodes whose published roots the audit trusts, beside this one."),
    Setting("pipeline.prices", str, "~/.posthouse/prices.toml", "File of prices per million tokens, by model."),
    Setting("pipeline.cds", bool, True, "Start Spark from an archive of its classes, kept in the cache directory."),
    Setting(
        "pipeline.retention_days",
        int,
        30,
        "How long the lake keeps the logs of bronze tables and the files that a compaction replaced.",
        "days",
        1,
        36_500,
    ),
    Setting(
        "pipeline.derived_retention_hours",
        int,
        1,
        "How long the lake keeps the logs and replaced files of silver and gold tables, which a run can build again.",
        "hours",
        1,
        876_000,
    ),
    Setting(
        "pipeline.compact_files",
        int,
        32,
        "Small files of one partition after which a run merges them.",
        "files",
        2,
        10_000,
    ),
    Setting("pipeline.batch_rows", int, 1_000_000, "Journal rows per commit of a run.", "rows", 1, 100_000_000),
)
_STORAGE: tuple[Setting, ...] = (
    Setting("journal.keep_days", int, JOURNAL_KEEP_DAYS, "Retention of journal records.", "days", 1, 36_500),
    Setting(
        "journal.max_bytes",
        int,
        JOURNAL_MAX_BYTES,
        "Size above which records are pruned before their retention ends.",
        "bytes",
        MIB,
        SAFE_INTEGER_MAX,
    ),
    Setting(
        "journal.lake", str, None, "Lake, as in pipeline.lake; if set, only records that it has committed are pruned."
    ),
    Setting(
        "log.level",
        str,
        "info",
        "Minimum severity of log entries.",
        choices=("debug", "info", "warning", "error"),
        is_live=True,
    ),
    Setting(
        "log.format",
        str,
        "auto",
        "auto: text on a terminal, JSON lines otherwise.",
        choices=("auto", "text", "json"),
    ),
)


def _settings_by_name() -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for setting in _BUS + _RELAY + _CLIENT + _DAEMON + _MCP + _PIPELINE + _STORAGE:
        if setting.name in settings:
            raise ValueError(f"setting {setting.name} is declared twice")
        settings[setting.name] = setting
    return settings


SETTINGS: dict[str, Setting] = _settings_by_name()
