from __future__ import annotations

import json
from typing import Any

import pytest

from posthouse.model.errors import Refused
from posthouse.model.reliability import Backpressure, CircuitBreaker, RateLimit, Reliability, merge_reliability


def merged(document: Any, current: Reliability | None = None) -> Reliability:
    return merge_reliability(current or Reliability(), json.dumps(document).encode())


def test_defaults() -> None:
    assert Reliability() == Reliability(
        rate_limit=RateLimit(enabled=True, window_secs=60, max_per_window=100, per_sender_overrides={}),
        circuit_breaker=CircuitBreaker(
            enabled=True, failure_threshold=5, cooldown_ms=30_000, half_open_probe_count=1, success_to_close=2
        ),
        backpressure=Backpressure(enabled=True, max_mailbox_size=1000, pressure_warning_at=0.8),
    )


def test_what_a_file_does_not_name_keeps_its_value() -> None:
    current = Reliability(
        rate_limit=RateLimit(max_per_window=7, window_secs=9), backpressure=Backpressure(max_mailbox_size=3)
    )
    result = merged({"reliability": {"rateLimit": {"maxPerWindow": 8}}, "other": 1}, current)
    assert result == Reliability(
        rate_limit=RateLimit(max_per_window=8, window_secs=9), backpressure=Backpressure(max_mailbox_size=3)
    )
    assert merged({}, current) == current


def test_all_fields_are_read_in_camel_case() -> None:
    document = {
        "rateLimit": {"enabled": False, "windowSecs": 1, "maxPerWindow": 0, "perSenderOverrides": {"a.b": 3}},
        "circuitBreaker": {
            "enabled": False,
            "failureThreshold": 1,
            "cooldownMs": 1000,
            "halfOpenProbeCount": 2,
            "successToClose": 1,
        },
        "backpressure": {"enabled": False, "maxMailboxSize": 1, "pressureWarningAt": 1},
    }
    result = merged({"reliability": document})
    assert result.rate_limit == RateLimit(
        enabled=False, window_secs=1, max_per_window=0, per_sender_overrides={"a.b": 3}
    )
    assert result.circuit_breaker.cooldown_ms == 1000
    assert result.backpressure.pressure_warning_at == 1


@pytest.mark.parametrize(
    "section",
    [
        {"rateLimit": {"windowSecs": 0}},
        {"rateLimit": {"maxPerWindow": -1}},
        {"rateLimit": {"maxPerWindow": "9"}},
        {"rateLimit": {"perSenderOverrides": {"a..b": 1}}},
        {"rateLimit": {"perSenderOverrides": {"a": -1}}},
        {"rateLimit": {"enabled": 1}},
        {"rateLimt": {}},
        {"rateLimit": {"maxPerWindw": 1}},
        {"rateLimit": None},
        {"circuitBreaker": {"cooldownMs": 999}},
        {"circuitBreaker": {"failureThreshold": 0}},
        {"circuitBreaker": {"halfOpenProbeCount": 0}},
        {"circuitBreaker": {"successToClose": 0}},
        {"backpressure": {"maxMailboxSize": 0}},
        {"backpressure": {"pressureWarningAt": 1.01}},
        {"backpressure": []},
    ],
)
def test_a_value_out_of_bounds_refuses_the_whole_file(section: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        merged({"reliability": section})
    assert caught.value.code == "reliability_invalid"


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"reliability":1}', b'{"reliability":{},"reliability":{}}', b"\xff"]
)
def test_a_file_that_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        merge_reliability(Reliability(), data)
    assert caught.value.code == "reliability_invalid"


def test_bounds_hold_for_arguments_too() -> None:
    with pytest.raises(Refused, match="cooldownMs"):
        CircuitBreaker(cooldown_ms=1)
    with pytest.raises(Refused):
        RateLimit(per_sender_overrides={"a.*": 1})
