"""Reliability settings for tests, and what a publish result says about them."""

from __future__ import annotations

from typing import Any

from posthouse import Bus
from tests.bus.mailboxes import hash_of
from tests.bus.waiting import eventually


def reliability(**sections: Any) -> dict[str, Any]:
    """Limits that stay out of the way, except for what the test names."""
    return {"rateLimit": {"maxPerWindow": 1_000_000}} | sections


def reasons(result: Any) -> list[str]:
    rejected = result["rejected"] if isinstance(result, dict) else result.rejected
    return [entry["reason"] if isinstance(entry, dict) else str(entry.reason) for entry in rejected]


async def fail_until_open(bus: Bus, subject: str, most: int = 20) -> int:
    """Publish one at a time, each after the former was handled, until the breaker refuses; return how many passed."""
    for passed in range(most):
        result = await bus.publish(subject, passed, from_="c")
        if result.rejected:
            assert reasons(result) == ["circuit_open"]
            return passed
        await settled(bus, subject)
    raise AssertionError("the breaker never opened")


async def settled(bus: Bus, subject: str) -> None:
    """Wait until the endpoint has no message that waits or is being handled."""
    box = bus.path / "mailboxes" / hash_of(subject)
    await eventually(lambda: not [*(box / "new").iterdir(), *(box / "cur").iterdir()])
