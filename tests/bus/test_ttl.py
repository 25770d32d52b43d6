"""How long a message lives: a week, or as long as its publisher says; a request as long as its caller waits."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse import Bus
from posthouse.model.errors import PosthouseError
from tests.bus.house import House

WEEK_S = 7 * 86_400


async def test_message_expires_after_the_time_that_its_publisher_gives(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    now_ms = house.clock.wall_ns() // 1_000_000
    for ttl_s in (2.5, 30 * 86_400):
        await bus.publish("a.b", ttl_s, from_="c", ttl_s=ttl_s)
    short, long = await bus.read_inbox("a.b")
    assert short.budget.ttl == now_ms + 2_500
    assert long.budget.ttl == now_ms + WEEK_S * 1_000
    house.clock.advance(3)
    assert [envelope.payload for envelope in await bus.read_inbox("a.b")] == [30 * 86_400]


async def test_request_expires_with_its_timeout(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    now_ms = house.clock.wall_ns() // 1_000_000
    with pytest.raises(TimeoutError):
        await bus.request("a.b", "?", from_="c", timeout_s=0.05)
    (asked,) = await bus.read_inbox("a.b")
    assert asked.budget.ttl == now_ms + 50


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), "60", True])
async def test_ttl_that_is_no_positive_number_is_refused(bus: Bus, ttl_s: Any) -> None:
    await bus.register_endpoint("a.b")
    with pytest.raises(PosthouseError) as refused:
        await bus.publish("a.b", 1, from_="c", ttl_s=ttl_s)
    assert refused.value.code == "value_invalid"
    assert await bus.read_inbox("a.b") == []
