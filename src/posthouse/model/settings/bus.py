"""Settings of the bus.

Rate limit, breaker and back-pressure are not here: they live in config.json of the bus, read again while it runs.
"""

from __future__ import annotations

from posthouse.model.limits import BUS_CALL_BUDGET, BUS_MAX_HOPS, BUS_TTL_MS, SAFE_INTEGER_MAX
from posthouse.model.settings.setting import Setting

BUS: tuple[Setting, ...] = (
    Setting("bus.dir", str, "~/.posthouse/bus", "Data directory of the bus."),
    Setting(
        "bus.durability",
        str,
        "process",
        "What a finished publish survives: the crash of any process, or loss of power.",
        choices=("process", "power"),
    ),
    Setting(
        "bus.cycle_rule",
        str,
        "chain",
        "chain: a line of messages reaches an endpoint once; hops: a dialogue is allowed.",
        choices=("chain", "hops"),
    ),
    Setting("bus.max_hops", int, BUS_MAX_HOPS, "Hops a line of messages may make.", "hops", 1, 1_000),
    Setting("bus.default_ttl_ms", int, BUS_TTL_MS, "How long a message may wait.", "ms", 1, SAFE_INTEGER_MAX),
    Setting(
        "bus.default_call_budget",
        int,
        BUS_CALL_BUDGET,
        "Publishes a line of messages may cause.",
        "calls",
        0,
        1_000_000,
    ),
    Setting("bus.handler_timeout_s", float, 30.0, "Time a handler may take for one message.", "s", 0.001, 86_400),
    Setting("bus.max_listeners", int, 100, "Signal listeners before a warning.", "listeners", 1, 1_000_000),
)
