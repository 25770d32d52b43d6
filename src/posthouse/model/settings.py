"""Every setting of posthouse: name, type, default, bounds and help, in the order the reference shows them.

The name `relay.queue_max` is also the environment variable POSTHOUSE_RELAY_QUEUE_MAX and the flag --queue-max. Rate
limit, breaker and back-pressure of the bus are not settings: they are in the bus's config.json, which a running bus
reads again when it changes. A test fails for a setting that no code reads. If you add a setting: 1. its area below,
2. the code that reads it, 3. `make docs`.
"""

from __future__ import annotations

from posthouse.model import limits
from posthouse.model.relay_settings import RELAY
from posthouse.model.setting import Setting
from posthouse.model.webhook import WEBHOOK_SETTINGS

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
        limits.BUDGET_MAX_HOPS,
        "Maximum hops of a line of messages, each caused by the one before; answers cost none.",
        "hops",
        1,
        1_000,
    ),
    Setting(
        "bus.default_ttl_ms", int, limits.BUDGET_TTL_MS, "Lifetime of a message.", "ms", 1, limits.SAFE_INTEGER_MAX
    ),
    Setting(
        "bus.default_call_budget",
        int,
        limits.BUDGET_CALLS,
        "Maximum length of a line of messages; answers cost none. Siblings, such as a fan-out, are not counted.",
        "calls",
        0,
        1_000_000,
    ),
    Setting(
        "bus.handler_timeout_s",
        float,
        float(limits.HANDLER_TIMEOUT_S),
        "Maximum time of a handler for one message, unless its subscription sets another.",
        "s",
        0.001,
        86_400,
    ),
    Setting(
        "bus.max_attempts",
        int,
        3,
        "Maximum starts of a message whose process ends before its handler does; after that it is a dead letter.",
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
        limits.BUS_MAX_PAYLOAD_BYTES,
        "Maximum size of a payload, as JSON.",
        "bytes",
        1,
        limits.BUS_PAYLOAD_BYTES_MAX,
    ),
)
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
    Setting(
        "outbox.max_bytes",
        int,
        5 * limits.GB,
        "Maximum size of the outbox.",
        "bytes",
        limits.MIB,
        limits.SAFE_INTEGER_MAX,
    ),
    Setting("inbox.keep_days", int, 30, "Retention of messages in the inbox, after they were read.", "days", 1, 36_500),
    Setting(
        "clone.policy",
        str,
        "refuse",
        "What the daemon does if its identity was created on another machine.",
        choices=("refuse", "warn", "allow"),
    ),
    Setting("daemon.bridge", bool, True, "Bridge messages between the mesh and the bus of this host."),
    Setting(
        "daemon.otlp_url",
        str,
        None,
        "Trace collector, http://HOST:PORT; the daemon traces messages that its agents send and read.",
    ),
    Setting("daemon.trace_ratio", float, 1.0, "Share of the messages that begin a trace of their own.", "", 0.0, 1.0),
    Setting(
        "daemon.report_usage",
        bool,
        False,
        "Report a coding agent's model usage in its messages, if its program shows it to hooks; readers see it.",
    ),
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
    Setting("pipeline.publishers", str, None, "Nodes whose published roots the audit trusts, besides this one."),
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
        "Number of small files of the newest day at which a run merges them.",
        "files",
        2,
        10_000,
    ),
    Setting("pipeline.batch_rows", int, 1_000_000, "Journal rows per commit of a run.", "rows", 1, 100_000_000),
)
_STORAGE: tuple[Setting, ...] = (
    Setting("journal.keep_days", int, limits.JOURNAL_KEEP_DAYS, "Retention of journal records.", "days", 1, 36_500),
    Setting(
        "journal.max_bytes",
        int,
        limits.JOURNAL_MAX_BYTES,
        "Size above which records are pruned before their retention ends.",
        "bytes",
        limits.MIB,
        limits.SAFE_INTEGER_MAX,
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
    for setting in _BUS + RELAY + WEBHOOK_SETTINGS + _CLIENT + _DAEMON + _MCP + _PIPELINE + _STORAGE:
        if setting.name in settings:
            raise ValueError(f"setting {setting.name} is declared twice")
        settings[setting.name] = setting
    return settings


SETTINGS: dict[str, Setting] = _settings_by_name()
