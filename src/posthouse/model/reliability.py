"""Configuration of the bus's safety rules (rate limit, breaker, back-pressure, dead letters), and the rules of room.

Operators write `{"reliability": {...}}` in config.json; agents cannot change it when they publish. A file is valid as a
whole or not at all; absent fields have their default. A full mailbox refuses messages, so it never holds more than its
maximum; depth counts the messages that wait or are being handled, without the one to decide. The text of the refusal
and the signal's content are contracts. The other rules are in rate and breaker.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, NamedTuple

import msgspec

from posthouse.model import limits
from posthouse.model.clock import format_utc
from posthouse.model.envelope import Signal, SignalType
from posthouse.model.errors import PosthouseError, error
from posthouse.model.strict_json import parse_json
from posthouse.model.subjects import prefixes, validate_subject

Count = Annotated[int, msgspec.Meta(ge=1, le=limits.SAFE_INTEGER_MAX)]
Allowance = Annotated[int, msgspec.Meta(ge=0, le=limits.SAFE_INTEGER_MAX)]


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A section of the file; its bounds are checked whenever one is made, not only when a file is read."""

    def __post_init__(self) -> None:
        plain = msgspec.structs.asdict(self)
        for field in msgspec.structs.fields(self):
            try:
                msgspec.convert(plain[field.name], field.type)
            except msgspec.ValidationError as fault:
                raise error("reliability_invalid", reason=f"{field.encode_name}: {fault}") from fault


class RateLimit(_Section, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The maximum publishes of a sender within a sliding window."""

    enabled: bool = True
    window_secs: Count = limits.RATE_WINDOW_S
    max_per_window: Allowance = limits.RATE_MAX_PER_WINDOW
    #: subject prefix -> its own maximum; the longest prefix at a token boundary wins
    per_sender_overrides: dict[str, Allowance] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for prefix in self.per_sender_overrides:
            validate_subject(prefix)

    def limit_for(self, sender: str) -> int:
        """Return the sender's limit: the override with the longest prefix of its subject, else the default."""
        overrides = self.per_sender_overrides
        if overrides:
            for prefix in prefixes(sender):
                if prefix in overrides:
                    return overrides[prefix]
        return self.max_per_window


class CircuitBreaker(_Section, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """When the circuit of a failing endpoint opens, and how it closes again."""

    enabled: bool = True
    failure_threshold: Count = limits.BREAKER_FAILURES
    cooldown_ms: Annotated[int, msgspec.Meta(ge=limits.BREAKER_COOLDOWN_MIN_MS, le=limits.SAFE_INTEGER_MAX)] = (
        limits.BREAKER_COOLDOWN_MS
    )
    half_open_probe_count: Count = limits.BREAKER_PROBES
    success_to_close: Count = limits.BREAKER_SUCCESSES


class Backpressure(_Section, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The capacity of a mailbox, and the level at which its senders are warned."""

    enabled: bool = True
    max_mailbox_size: Count = limits.MAILBOX_MAX
    pressure_warning_at: Annotated[float, msgspec.Meta(ge=0, le=1)] = limits.PRESSURE_WARNING_AT


class DeadLetterLimits(_Section, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The limits of an endpoint's dead letters.

    If there are too many of refused messages, the oldest are deleted. Those of failed messages are never deleted: at
    the limit the endpoint refuses new mail.
    """

    enabled: bool = True
    max_letters: Count = limits.DEAD_LETTERS_MAX
    max_bytes: Count = limits.DEAD_LETTERS_MAX_BYTES


class Reliability(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All sections together."""

    rate_limit: RateLimit = RateLimit()
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    backpressure: Backpressure = Backpressure()
    dead_letters: DeadLetterLimits = DeadLetterLimits()


def merge_reliability(defaults: Reliability, data: bytes) -> Reliability:
    """Return the configuration that a config.json describes, or raise reliability_invalid.

    Absent sections and fields have the value of `defaults`; other keys of the file are ignored.
    """
    try:
        document = parse_json(data)
        named = _objects(document, "the file").get("reliability", {})
        plain = msgspec.to_builtins(defaults)
        for section, fields in _objects(named, "reliability").items():
            plain[section] = plain.get(section, {}) | _objects(fields, section)
        return msgspec.convert(plain, Reliability)
    except msgspec.ValidationError as fault:
        raise error("reliability_invalid", reason=str(fault)) from fault
    except PosthouseError as fault:
        raise error("reliability_invalid", reason=fault.fields.get("reason", str(fault))) from fault


def named_limits(data: bytes) -> frozenset[str]:
    """Return the names that a valid config.json sets, such as `rateLimit.maxPerWindow`."""
    sections: dict[str, dict[str, Any]] = parse_json(data).get("reliability", {})
    return frozenset(f"{section}.{name}" for section, fields in sections.items() for name in fields)


def _objects(value: Any, where: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise error("reliability_invalid", reason=f"{where} is not an object")
    return value


class PressureState(enum.StrEnum):
    """The states of a mailbox's pressure."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


class Pressure(NamedTuple):
    """The pressure of one mailbox, and the refusal that follows from it."""

    #: 0 (empty) to 1 (full)
    level: float
    state: PressureState
    current_size: int
    max_mailbox_size: int
    #: why the message is refused, or None
    text: str | None = None


def check_pressure(depth: int, config: Backpressure) -> Pressure:
    """Decide if a mailbox with `depth` messages accepts one more."""
    maximum = config.max_mailbox_size
    level = min(1.0, depth / maximum)
    if not config.enabled:
        return Pressure(level, PressureState.OK, depth, maximum)
    if depth >= maximum:
        return Pressure(
            level, PressureState.CRITICAL, depth, maximum, f"backpressure: mailbox full ({depth}/{maximum})"
        )
    state = PressureState.WARNING if level >= config.pressure_warning_at else PressureState.OK
    return Pressure(level, state, depth, maximum)


def letters_refusal(count: int, size_bytes: int, config: DeadLetterLimits) -> str | None:
    """Return why an endpoint with so many dead letters of failed messages refuses new mail; None if it accepts mail."""
    if not config.enabled:
        return None
    if count >= config.max_letters:
        return f"backpressure: dead letters full ({count}/{config.max_letters})"
    if size_bytes >= config.max_bytes:
        return f"backpressure: dead letters full ({size_bytes}/{config.max_bytes} bytes)"
    return None


def pressure_signal(pressure: Pressure, endpoint: str, wall_ns: int) -> Signal | None:
    """Return the signal to the sender about the endpoint, or None if the pressure is ok."""
    if pressure.state is PressureState.OK:
        return None
    return Signal(
        type=SignalType.BACKPRESSURE,
        state=pressure.state.value,
        endpoint_subject=endpoint,
        timestamp=format_utc(wall_ns),
        data={
            "pressure": pressure.level,
            "currentSize": pressure.current_size,
            "maxMailboxSize": pressure.max_mailbox_size,
        },
    )
