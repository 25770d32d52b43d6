from __future__ import annotations

import asyncio

from tests.bus.house import House
from tests.bus.limits import reasons, reliability
from tests.bus.mailboxes import unrouted


async def test_rate_limit_refuses_the_publish_after_the_last_allowed_one(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 3, "windowSecs": 10}})
    await bus.register_endpoint("a.b")
    results = [await bus.publish("a.b", n, from_="c") for n in range(4)]
    assert [result.delivered_to for result in results] == [1, 1, 1, 0]
    (refusal,) = results[3].rejected
    assert (refusal.endpoint_hash, refusal.reason) == ("*", "rate_limited")
    assert refusal.text == "rate limit exceeded: 3/3 messages in 10s window"


async def test_rate_window_slides_and_refused_publishes_leave_no_trace(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 2, "windowSecs": 10}})
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    house.clock.advance(6)
    await bus.publish("a.b", 2, from_="c")
    for _ in range(5):
        assert reasons(await bus.publish("a.b", 3, from_="c")) == ["rate_limited"]
    house.clock.advance(4)
    assert reasons(await bus.publish("a.b", 4, from_="c")) == []
    assert reasons(await bus.publish("a.b", 5, from_="c")) == ["rate_limited"]


async def test_rate_window_survives_a_step_of_the_wall_clock_and_ends_with_the_boot(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 1, "windowSecs": 60}})
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    house.clock.step_wall(3_600 * 24)
    assert reasons(await bus.publish("a.b", 2, from_="c")) == ["rate_limited"]
    house.clock.reboot()
    assert reasons(await bus.publish("a.b", 3, from_="c")) == []


async def test_rate_counts_once_per_publish_not_per_endpoint(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 2}})
    for name in "abcd":
        await bus.register_endpoint(f"team.{name}")
    delivered = [(await bus.publish("team.*", n, from_="c")).delivered_to for n in range(3)]
    assert delivered == [4, 4, 0]


async def test_rate_limit_is_per_sender_with_overrides_by_longest_prefix(house: House) -> None:
    overrides = {"agent": 2, "agent.big": 4, "agent.big.none": 0}
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 1, "perSenderOverrides": overrides}})
    await bus.register_endpoint("a.b")

    async def allowed(sender: str) -> int:
        return sum([(await bus.publish("a.b", n, from_=sender)).delivered_to for n in range(6)])

    assert await allowed("agent.small") == 2
    assert await allowed("agent.big.x") == 4
    assert await allowed("agent.big.none") == 0
    assert await allowed("agentur") == 1
    assert await allowed("other") == 1


async def test_disabled_rate_limit_lets_everything_through(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"enabled": False, "maxPerWindow": 1}})
    await bus.register_endpoint("a.b")
    assert sum([(await bus.publish("a.b", n, from_="c")).delivered_to for n in range(5)]) == 5


async def test_refusals_of_rate_breaker_and_pressure_never_become_dead_letters(house: House) -> None:
    bus = await house.bus(
        reliability={"rateLimit": {"maxPerWindow": 3}, "backpressure": {"maxMailboxSize": 1}},
    )
    await bus.register_endpoint("a.b")
    seen = [reasons(await bus.publish("a.b", n, from_="c")) for n in range(5)]
    assert ["backpressure"] in seen
    assert ["rate_limited"] in seen
    assert house.mailbox("a.b").failed == []
    assert unrouted(house.root) == []
    assert await bus.dead_letters() == []


async def test_rate_limit_is_exact_across_two_processes(house: House) -> None:
    limits = reliability(rateLimit={"maxPerWindow": 50, "windowSecs": 600})
    agents = [await house.agent(reliability=limits), await house.agent(reliability=limits)]
    await agents[0].ask("register", subject="a.b")
    results = await asyncio.gather(
        *(agent.ask("burst", subject="a.b", count=100, from_="same.sender") for agent in agents)
    )
    delivered = sum(result["delivered_to"] for part in results for result in part)
    assert delivered == 50
    assert len(house.mailbox("a.b").new) == 50
    refused = [reasons(result) for part in results for result in part if not result["delivered_to"]]
    assert refused == [["rate_limited"]] * 150
