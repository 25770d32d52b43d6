"""What HELLO and /v1/info say about messages, for clients that check before they rely on it."""

from __future__ import annotations

from typing import Any

from posthouse.model.limits import BODY_MAX_BYTES
from posthouse.relay.deliver.settings import DeliverySettings

DEDUPE_VERSION = 2  # of the fingerprint rules: docs/protocol.md


def message_features(settings: DeliverySettings) -> dict[str, Any]:
    """Return the features of messages with their parameters."""
    days = settings.record_retention_days
    return {
        "messages": True,
        "client_message_id_dedupe": {
            "version": DEDUPE_VERSION,
            "mode": "permanent" if days is None else "retention",
            "dedupe_retention_days": days,
            "request_fingerprint": True,
        },
        "concurrent_connection_policy": settings.policy.value,
        "max_payload": BODY_MAX_BYTES,
    }
