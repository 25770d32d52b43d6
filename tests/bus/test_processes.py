"""Several processes on one data directory: hand-over, order, stand-by, redelivery."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from posthouse import Bus
from tests.bus.counters import depth_counter
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.test_journal import of_type
from tests.bus.waiting import eventually


async def test_message_of_one_process_is_handled_by_the_other(house: House) -> None:
    server, publisher = await house.agent(), await house.agent()
    await server.ask("register", subject="a.b")
    await server.ask("subscribe", pattern="a.b")
    for number in range(20):
        await publisher.ask("publish", subject="a.b", payload=number, from_="c")
    assert await server.wait_handled(20) == list(range(20))
    await eventually(lambda: house.mailbox("a.b").depth == 0)


async def test_order_holds_across_processes(house: House) -> None:
    """One process after another publishes; each publish returned before the next began."""
    server, *publishers = [await house.agent() for _ in range(3)]
    await server.ask("register", subject="a.b")
    await server.ask("subscribe", pattern="a.b")
    for number in range(40):
        await publishers[number % 2].ask("publish", subject="a.b", payload=number, from_=f"p{number % 2}")
    assert await server.wait_handled(40) == list(range(40))


async def test_each_of_two_concurrent_publishing_processes_keeps_its_order(house: House) -> None:
    limits = {"rateLimit": {"maxPerWindow": 100_000}}
    server, *publishers = [await house.agent(reliability=limits) for _ in range(3)]
    await server.ask("register", subject="a.b")
    await server.ask("subscribe", pattern="a.b")
    await asyncio.gather(
        *(agent.ask("sequence", subject="a.b", count=150, from_=f"p{n}") for n, agent in enumerate(publishers))
    )
    handled = await server.wait_handled(300)
    for name in ("p0", "p1"):
        assert [payload["n"] for payload in handled if payload["by"] == name] == list(range(150))


async def test_ids_of_concurrent_processes_never_collide(house: House) -> None:
    limits = {"rateLimit": {"maxPerWindow": 100_000}}
    agents = [await house.agent(reliability=limits) for _ in range(2)]
    await agents[0].ask("register", subject="a.b")
    results = await asyncio.gather(
        *(agent.ask("burst", subject="a.b", count=200, from_=f"p{n}") for n, agent in enumerate(agents))
    )
    ids = [result["message_id"] for part in results for result in part]
    assert len(set(ids)) == 400
    assert len(house.mailbox("a.b").new) == 400


async def test_stand_by_takes_over_within_a_second_of_kill_9_and_redelivers_the_message_that_was_being_handled(
    house: House,
) -> None:
    first, second, publisher = [await house.agent() for _ in range(3)]
    for agent, behaviour in ((first, "hold"), (second, "record")):
        await agent.ask("register", subject="a.b")
        await agent.ask("subscribe", pattern="a.b", behaviour=behaviour)
    for number in range(5):
        await publisher.ask("publish", subject="a.b", payload=number, from_="c")
    await first.wait_handled(1)
    assert second.handled() == []
    assert len(house.mailbox("a.b").cur) == 1
    loop = asyncio.get_running_loop()
    await first.kill()
    killed_at = loop.time()
    handled = await second.wait_handled(5)
    assert loop.time() - killed_at < 1
    assert handled == list(range(5))
    await publisher.ask("publish", subject="a.b", payload="after", from_="c")
    assert (await second.wait_handled(6))[5] == "after"
    await eventually(lambda: house.mailbox("a.b").depth == 0)


async def test_stand_by_takes_over_when_the_server_closes_orderly(house: House) -> None:
    first, second = await house.agent(), await house.agent()
    for agent in (first, second):
        await agent.ask("register", subject="a.b")
        await agent.ask("subscribe", pattern="a.b")
    await first.stop()
    await second.ask("publish", subject="a.b", payload=1, from_="c")
    assert await second.wait_handled(1) == [1]


async def test_stand_by_takes_over_when_the_server_unsubscribes(house: House) -> None:
    first, second = await house.agent(), await house.agent()
    for agent in (first, second):
        await agent.ask("register", subject="a.b")
        await agent.ask("subscribe", pattern="a.b")
    await first.ask("publish", subject="a.b", payload=1, from_="c")
    await first.wait_handled(1)
    await first.ask("drop", pattern="a.b")
    await first.ask("publish", subject="a.b", payload=2, from_="c")
    assert await second.wait_handled(1) == [2]


async def test_two_servers_never_handle_the_same_message(house: House) -> None:
    limits = {"rateLimit": {"maxPerWindow": 100_000}}
    agents = [await house.agent(reliability=limits) for _ in range(3)]
    for agent in agents[:2]:
        await agent.ask("register", subject="a.b")
        await agent.ask("subscribe", pattern="a.b")
    await agents[2].ask("burst", subject="a.b", count=200, from_="c")
    await eventually(lambda: len(agents[0].handled()) + len(agents[1].handled()) >= 200)
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    handled = [payload["n"] for agent in agents[:2] for payload in agent.handled()]
    assert sorted(handled) == list(range(200))


async def test_process_that_did_not_register_the_endpoint_does_not_serve_it(house: House, bus: Bus) -> None:
    agent = await house.agent()
    await bus.register_endpoint("a.b")
    await agent.ask("subscribe", pattern=">")
    await bus.publish("a.b", 1, from_="c")
    got = Recorder()
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == [1]
    assert agent.handled() == []


async def test_mail_in_cur_of_a_dead_process_is_delivered_after_a_restart(house: House) -> None:
    first = await house.agent()
    await first.ask("register", subject="a.b")
    await first.ask("subscribe", pattern="a.b", behaviour="hold")
    for number in range(3):
        await first.ask("publish", subject="a.b", payload=number, from_="c")
    await first.wait_handled(1)
    await first.kill()
    second = await house.agent()
    await second.ask("register", subject="a.b")
    await second.ask("subscribe", pattern="a.b")
    assert await second.wait_handled(3) == [0, 1, 2]


async def test_file_without_a_record_gets_exactly_one_after_the_publishers_death(house: House, bus: Bus) -> None:
    """Every published message has one bus.published record, also those whose publisher was killed at any step."""
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    answer = agent.post("burst", subject="a.b", count=5_000, from_="c")
    await eventually(lambda: len(house.mailbox("a.b").new), lambda count: count >= 20)
    await agent.kill()
    with pytest.raises(Exception, match="child_ended"):
        await answer
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    await eventually(lambda: house.mailbox("a.b").depth == 0)
    refs = [record.ref for record in of_type(house.root, "bus.published")]
    assert sorted(got.ids) == sorted(ref for ref in refs if ref is not None)
    await bus.sweep()
    assert depth_counter(house.root, "a.b") == 0
    await bus.close()  # its spare files go, nothing else does
    assert house.mailbox("a.b").names("tmp") == []


async def test_hundred_endpoints_of_one_process_are_served_from_another(house: House) -> None:
    limits: dict[str, Any] = {"rateLimit": {"maxPerWindow": 100_000}}
    server, publisher = await house.agent(reliability=limits), await house.agent(reliability=limits)
    for number in range(100):
        await server.ask("register", subject=f"many.n{number}")
    await server.ask("subscribe", pattern="many.*")
    result = await publisher.ask("publish", subject="many.*", payload="all", from_="c")
    assert result["delivered_to"] == 100
    await server.wait_handled(100)


async def test_endpoint_registered_by_another_process_is_found_at_once(house: House, bus: Bus) -> None:
    agent = await house.agent()
    assert (await bus.publish("a.b", 1, from_="c")).delivered_to == 0
    await agent.ask("register", subject="a.b")
    assert (await bus.publish("a.b", 2, from_="c")).delivered_to == 1
    await agent.ask("unregister", subject="a.b", force=True)
    assert (await bus.publish("a.b", 3, from_="c")).delivered_to == 0
