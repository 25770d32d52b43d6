"""Features that a daemon requires of a relay, checked against HELLO.

A relay that forgets ids too early, or does not compare requests, would deliver a retry twice. Such a connection is
closed with its close code and a reason in JSON before the daemon signs anything for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import RECORD_RETENTION_MIN_DAYS
from posthouse.model.outbox_rules import default_max_age_h, max_age_bound_h

DEDUPE, POLICY, PAYLOAD = "client_message_id_dedupe", "concurrent_connection_policy", "max_payload"
DEDUPE_VERSION = 2
CODE_UNAVAILABLE, CODE_INVALID, CODE_BELOW_FLOOR = 4010, 4011, 4012
_MODES = ("retention", "permanent")
_POLICIES = ("prefer_newest", "allow_concurrent")
#: codes that refuse a relay's offer: the relay, or the settings of this host, must be changed
OFFER_REFUSALS = frozenset(
    {"feature_unavailable", "feature_param_invalid", "feature_param_below_floor", "outbox_max_age_above_dedupe_window"}
)


@dataclass(frozen=True, slots=True)
class Offer:
    """The features of a relay, after validation."""

    #: days for which the relay remembers ids; None: forever
    retention_days: int | None
    policy: str
    max_payload: int


def read_offer(features: Mapping[str, Any]) -> Offer:
    """Validate the features in HELLO; raises a feature error that carries the close code."""
    dedupe = _present(features, DEDUPE)
    policy, max_payload = _present(features, POLICY), _present(features, PAYLOAD)
    if policy not in _POLICIES:
        raise _invalid(POLICY, POLICY, policy)
    if type(max_payload) is not int or max_payload < 1:
        raise _invalid(PAYLOAD, PAYLOAD, max_payload)
    return Offer(_retention_days(dedupe), policy, max_payload)


def bounded_max_age_h(retention_days: int | None, configured_h: int | None) -> int:
    """Return the hours that a row may wait, given how long the relay remembers ids.

    Raises outbox_max_age_above_dedupe_window if a configured age is above the bound.
    """
    if configured_h is None:
        return default_max_age_h(retention_days)
    bound_h = max_age_bound_h(retention_days)
    if configured_h > bound_h:
        raise error("outbox_max_age_above_dedupe_window", max_age_h=configured_h, bound_h=bound_h)
    return configured_h


def _retention_days(dedupe: Any) -> int | None:
    if not isinstance(dedupe, dict):
        raise _invalid(DEDUPE, DEDUPE, dedupe)
    for param in ("version", "mode", "request_fingerprint"):
        if param not in dedupe:
            raise _invalid(DEDUPE, param, None)
    version, mode, days = dedupe["version"], dedupe["mode"], dedupe.get("dedupe_retention_days")
    if type(version) is not int:
        raise _invalid(DEDUPE, "version", version)
    if version < DEDUPE_VERSION:
        raise _below(DEDUPE, "version", version, DEDUPE_VERSION)
    if mode not in _MODES:
        raise _invalid(DEDUPE, "mode", mode)
    if dedupe["request_fingerprint"] is not True:
        raise _invalid(DEDUPE, "request_fingerprint", dedupe["request_fingerprint"])
    if mode == "permanent":
        return None
    if type(days) is not int:
        raise _invalid(DEDUPE, "dedupe_retention_days", days)
    if days < RECORD_RETENTION_MIN_DAYS:
        raise _below(DEDUPE, "dedupe_retention_days", days, RECORD_RETENTION_MIN_DAYS)
    return days


def _present(features: Mapping[str, Any], name: str) -> Any:
    if features.get(name) is None:
        raise error("feature_unavailable", feature=name, close_code=CODE_UNAVAILABLE)
    return features[name]


def _invalid(feature: str, param: str, value: Any) -> PosthouseError:
    return error("feature_param_invalid", feature=feature, param=param, value=value, close_code=CODE_INVALID)


def _below(feature: str, param: str, value: int, floor: int) -> PosthouseError:
    return error(
        "feature_param_below_floor",
        feature=feature,
        param=param,
        value=value,
        floor=floor,
        close_code=CODE_BELOW_FLOOR,
    )
