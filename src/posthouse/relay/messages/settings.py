"""Queue settings of the operator, and the message features that HELLO and /v1/info report from them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from posthouse.model import limits


class ConnectionPolicy(enum.StrEnum):
    """What happens to the first session of a node when a second one opens."""

    PREFER_NEWEST = "prefer_newest"
    ALLOW_CONCURRENT = "allow_concurrent"


@dataclass(frozen=True)
class DeliverySettings:
    """Bounds and times of queues; times in nanoseconds are computed once, because every message needs them."""

    #: unconfirmed deliveries per mesh and recipient
    queue_max: int = limits.QUEUE_MAX
    #: ids of confirmations that wait for one sender
    confirmation_reserve: int = limits.CONFIRMATION_RESERVE
    queue_ttl_s: float = limits.QUEUE_TTL_S
    sweep_s: float = limits.QUEUE_SWEEP_S
    confirm_timeout_s: float = limits.CONFIRM_TIMEOUT_S
    policy: ConnectionPolicy = ConnectionPolicy.PREFER_NEWEST
    #: None keeps dedupe records forever
    record_retention_days: int | None = limits.RECORD_RETENTION_DAYS

    @cached_property
    def queue_ttl_ns(self) -> int:
        return round(self.queue_ttl_s * limits.SECOND_NS)

    @cached_property
    def record_retention_ns(self) -> int | None:
        return (
            None if self.record_retention_days is None else self.record_retention_days * limits.DAY_S * limits.SECOND_NS
        )


DEFAULT_SETTINGS = DeliverySettings()
AGENTS_VERSION = 1  # of the tags from and to, and of the agents in profiles and PRESENCE
RECEIPTS_VERSION = 1
DEDUPE_VERSION = 2  # of the fingerprint rules, see docs/protocol.md


def message_features(settings: DeliverySettings) -> dict[str, Any]:
    """Return the message features of a relay with their parameters."""
    days = settings.record_retention_days
    return {
        "messages": True,
        "agents": {"version": AGENTS_VERSION},
        "receipts": {"version": RECEIPTS_VERSION},
        "gaps": True,
        "client_message_id_dedupe": {
            "version": DEDUPE_VERSION,
            "mode": "permanent" if days is None else "retention",
            "dedupe_retention_days": days,
            "request_fingerprint": True,
        },
        "concurrent_connection_policy": settings.policy.value,
        "max_payload": limits.BODY_MAX_BYTES,
    }
