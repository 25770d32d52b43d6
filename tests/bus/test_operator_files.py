"""config.json: the operator's limits, which apply while the bus runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from posthouse import Bus
from tests.bus.house import House
from tests.bus.waiting import DEADLINE_S


def write(house: House, text: str) -> None:
    path = house.root / "config.json"
    path.write_text(text)
    path.chmod(0o600)


def write_limits(house: House, **sections: Any) -> None:
    write(house, json.dumps({"reliability": sections}))


async def until_limit(bus: Bus, limit: int, within_s: float = DEADLINE_S) -> None:
    """Publish as fresh senders until a sender's limit is the expected one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    attempt = 0
    while True:
        attempt += 1
        found = await limit_of(bus, f"probe{attempt}", limit + 1)
        if found == limit:
            return
        assert loop.time() < deadline, f"the limit is {found}, not {limit}"
        await asyncio.sleep(0.02)


async def limit_of(bus: Bus, sender: str, most: int) -> int:
    """How many publishes a fresh sender may make, as far as `most`."""
    for count in range(most):
        result = await bus.publish("a.b", count, from_=sender)
        if result.rejected and str(result.rejected[0].reason) == "rate_limited":
            return count
    return most


async def opened(house: House, **settings: Any) -> Bus:
    bus = await house.bus(**settings)
    await bus.register_endpoint("a.b")
    return bus


async def test_file_wins_over_arguments(house: House) -> None:
    house.root.mkdir(mode=0o700)
    write_limits(house, rateLimit={"maxPerWindow": 2})
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 9}})
    assert await limit_of(bus, "c", 20) == 2


async def test_file_keeps_what_it_does_not_name(house: House) -> None:
    """Naming one field of one section leaves its other fields and the other sections alone."""
    house.root.mkdir(mode=0o700)
    write_limits(house, rateLimit={"windowSecs": 7}, backpressure={"pressureWarningAt": 0.5})
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 3}, "backpressure": {"maxMailboxSize": 2}})
    await bus.publish("a.b", 1, from_="x")
    await bus.publish("a.b", 1, from_="x")
    full = await bus.publish("a.b", 1, from_="x")
    assert full.rejected[0].text == "backpressure: mailbox full (2/2)"
    limited = await bus.publish("a.b", 1, from_="x")
    assert limited.rejected[0].text == "rate limit exceeded: 3/3 messages in 7s window"


async def test_changed_file_applies_within_a_second(house: House) -> None:
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 5}})
    assert await limit_of(bus, "before", 10) == 5
    write_limits(house, rateLimit={"maxPerWindow": 3})
    await until_limit(bus, 3, within_s=1.5)


async def test_changed_file_applies_in_other_processes(house: House) -> None:
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    await agent.ask("publish", subject="a.b", payload=1, from_="c")
    write_limits(house, rateLimit={"maxPerWindow": 1})
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 1.5
    while not (await agent.ask("publish", subject="a.b", payload=1, from_="c"))["rejected"]:
        assert loop.time() < deadline


@pytest.mark.parametrize(
    "text",
    [
        "{broken",
        "[]",
        '{"reliability": []}',
        '{"reliability": {"rateLimit": {"maxPerWindow": -1}}}',
        '{"reliability": {"rateLimit": {"maxPerWindow": "many"}}}',
        '{"reliability": {"circuitBreaker": {"cooldownMs": 999}}}',
        '{"reliability": {"backpressure": {"maxMailboxSize": 0}}}',
        '{"reliability": {"unknown": {}}}',
        '{"reliability": {"rateLimit": {"maxPerWindow": 1, "typo": 2}}}',
    ],
)
async def test_invalid_file_keeps_everything_and_is_reported(house: House, text: str) -> None:
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 4}})
    write(house, text)
    await reported(bus)
    assert await limit_of(bus, "after", 10) == 4
    write_limits(house, rateLimit={"maxPerWindow": 2})
    await until_limit(bus, 2)
    assert bus.problems() == []


async def reported(bus: Bus) -> None:
    """Publish until the error is reported; reloading may take a second."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while not any(problem.code == "reliability_invalid" for problem in bus.problems()):
        await bus.publish("a.b", 1, from_="other")
        assert loop.time() < deadline
        await asyncio.sleep(0.02)


async def test_invalid_file_at_the_start_is_reported_and_the_arguments_hold(house: House) -> None:
    house.root.mkdir(mode=0o700)
    write(house, "{broken")
    bus = await opened(house, reliability={"rateLimit": {"maxPerWindow": 4}})
    assert await limit_of(bus, "c", 10) == 4
    assert [problem.code for problem in bus.problems()] == ["reliability_invalid"]


async def test_unknown_keys_in_the_file_are_ignored(house: House) -> None:
    house.root.mkdir(mode=0o700)
    write(house, '{"theme": "dark", "reliability": {"rateLimit": {"maxPerWindow": 1}}}')
    bus = await opened(house)
    assert await limit_of(bus, "c", 5) == 1
    assert bus.problems() == []
