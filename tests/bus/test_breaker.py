from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from posthouse import Bus
from tests.bus.agent import Agent
from tests.bus.house import House
from tests.bus.limits import fail_until_open, reasons, reliability, settled
from tests.bus.listening import Recorder
from tests.bus.mailboxes import hash_of
from tests.bus.waiting import eventually


async def test_always_failing_handler_opens_the_breaker_one_publish_at_a_time(house: House) -> None:
    bus = await house.bus()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", Recorder(fails=True))
    assert await fail_until_open(bus, "a.b") == 5
    result = await bus.publish("a.b", 1, from_="c")
    assert [entry.text for entry in result.rejected] == [f"circuit open for endpoint {hash_of('a.b')}"]
    assert result.rejected[0].subject == "a.b"


async def test_always_failing_handler_opens_the_breaker_for_a_publisher_in_another_process(house: House) -> None:
    server, publisher = await house.agent(), await house.agent()
    await server.ask("register", subject="a.b")
    await server.ask("subscribe", pattern="a.b", behaviour="fail")
    for number in range(5):
        result = await publisher.ask("publish", subject="a.b", payload=number, from_="c")
        assert result["delivered_to"] == 1
        await wait_failed(house, number + 1)
    refused = await eventually_refused(publisher, "a.b")
    assert reasons(refused) == ["circuit_open"]


async def wait_failed(house: House, count: int) -> None:
    """Wait until that many messages of a.b have failed."""
    await eventually(lambda: len(house.mailbox("a.b").failed), lambda found: found == count)


async def eventually_refused(agent: Agent, subject: str) -> Any:
    """The failure is recorded right after its file moved: allow a publish or two to slip in between."""
    for _ in range(3):
        result = await agent.ask("publish", subject=subject, payload="after", from_="c")
        if result["rejected"]:
            return result
    raise AssertionError("the breaker is still closed")


async def test_success_between_failures_starts_the_count_again(house: House) -> None:
    bus = await house.bus()
    handler = Recorder(fails=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    for number in range(12):
        handler.fails = number % 4 != 3
        assert reasons(await bus.publish("a.b", number, from_="c")) == []
        await settled(bus, "a.b")


async def test_stored_write_counts_as_no_success_for_a_served_endpoint(house: House) -> None:
    """Else publishing to a failing handler would keep its own breaker closed."""
    bus = await house.bus()
    failing = Recorder(fails=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", failing)
    for number in range(5):
        await bus.publish("a.b", number, from_="c")
    await failing.wait(5)
    await settled(bus, "a.b")
    assert reasons(await bus.publish("a.b", "x", from_="c")) == ["circuit_open"]


async def opened(house: House, **breaker: Any) -> tuple[Bus, Recorder]:
    """A bus whose endpoint a.b has just been shut off by its breaker."""
    bus = await house.bus(reliability=reliability(circuitBreaker=breaker))
    handler = Recorder(fails=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    await fail_until_open(bus, "a.b")
    return bus, handler


async def test_half_open_admits_exactly_one_probe_of_64_concurrent_publishes(house: House) -> None:
    bus, handler = await opened(house)
    handler.fails = False
    handler.release.clear()
    house.clock.advance(30)
    results = await asyncio.gather(*(bus.publish("a.b", n, from_="c") for n in range(64)))
    assert sum(result.delivered_to for result in results) == 1
    assert Counter(reason for result in results for reason in reasons(result)) == {"circuit_open": 63}
    handler.release.set()


async def test_half_open_admits_its_configured_probe_count(house: House) -> None:
    bus, handler = await opened(house, halfOpenProbeCount=3, successToClose=3)
    handler.fails = False
    handler.release.clear()
    house.clock.advance(30)
    results = await asyncio.gather(*(bus.publish("a.b", n, from_="c") for n in range(64)))
    assert sum(result.delivered_to for result in results) == 3
    handler.release.set()


async def test_half_open_admits_one_probe_over_two_processes(house: House, tmp_path: Path) -> None:
    steps = tmp_path / "clock.json"
    steps.write_text("{}")
    agents = [await house.agent(clock_file=steps) for _ in range(3)]
    server, *publishers = agents
    await server.ask("register", subject="a.b")
    await server.ask("subscribe", pattern="a.b", behaviour="fail")
    for number in range(5):
        await publishers[0].ask("publish", subject="a.b", payload=number, from_="c")
        await wait_failed(house, number + 1)
    await eventually_refused(publishers[0], "a.b")
    await server.ask("behave", pattern="a.b", behaviour="hold")
    steps.write_text('{"wall_offset_ns": 31000000000, "boot_offset_ns": 31000000000}')
    results = await asyncio.gather(
        *(agent.ask("burst", subject="a.b", count=32, from_=f"sender{n}") for n, agent in enumerate(publishers))
    )
    assert sum(result["delivered_to"] for part in results for result in part) == 1


async def test_cooldown_must_pass_before_a_probe_is_let_through(house: House) -> None:
    bus, handler = await opened(house)
    handler.fails = False
    house.clock.advance(29.9)
    assert reasons(await bus.publish("a.b", 1, from_="c")) == ["circuit_open"]
    house.clock.advance(0.2)
    assert reasons(await bus.publish("a.b", 2, from_="c")) == []


async def test_failed_probe_opens_the_breaker_again(house: House) -> None:
    bus, _handler = await opened(house)
    house.clock.advance(30)
    assert reasons(await bus.publish("a.b", "probe", from_="c")) == []
    await settled(bus, "a.b")
    await eventually(lambda: len(house.mailbox("a.b").failed), lambda count: count == 6)
    house.clock.advance(29)
    assert reasons(await bus.publish("a.b", "early", from_="c")) == ["circuit_open"]


async def test_successful_probes_close_the_breaker(house: House) -> None:
    bus, handler = await opened(house)
    handler.fails = False
    house.clock.advance(30)
    for number in range(2):
        assert reasons(await bus.publish("a.b", number, from_="c")) == []
        await settled(bus, "a.b")
    handler.release.clear()
    results = [await bus.publish("a.b", n, from_="c") for n in range(5)]
    assert [result.delivered_to for result in results] == [1] * 5
    handler.release.set()


async def test_new_server_of_an_endpoint_starts_with_a_closed_breaker(house: House) -> None:
    bus, _handler = await opened(house)
    await bus.close()
    fresh = await house.bus()
    got = Recorder()
    await fresh.register_endpoint("a.b")
    await fresh.subscribe("a.b", got)
    await eventually_async(lambda: fresh.publish("a.b", "hello", from_="c"))
    assert (await got.wait(1))[0] == "hello"


async def eventually_async(publish: Any) -> None:
    """Taking the lock happens in the background: the first publish after it must pass."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 5
    while not (await publish()).delivered_to:
        assert loop.time() < deadline


async def test_breaker_is_listed_and_can_be_reset(house: House) -> None:
    bus, _handler = await opened(house)
    (state,) = [breaker for breaker in await bus.breakers() if breaker.subject == "a.b"]
    assert state.circuit == "OPEN"
    await bus.reset_breaker("a.b")
    assert reasons(await bus.publish("a.b", 1, from_="c")) == []


async def test_open_breaker_of_one_endpoint_leaves_the_others_alone(house: House) -> None:
    bus, _handler = await opened(house)
    await bus.register_endpoint("a.good")
    result = await bus.publish("a.*", 1, from_="c")
    assert result.delivered_to == 1
    assert [entry.subject for entry in result.rejected] == ["a.b"]


async def test_disabled_breaker_never_opens(house: House) -> None:
    bus = await house.bus(reliability=reliability(circuitBreaker={"enabled": False}))
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", Recorder(fails=True))
    for number in range(12):
        assert reasons(await bus.publish("a.b", number, from_="c")) == []
        await settled(bus, "a.b")
