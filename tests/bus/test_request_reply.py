from __future__ import annotations

import asyncio

import pytest

from posthouse import Bus
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.waiting import bounded


async def serve_answers(bus: Bus, subject: str = "math.double") -> None:
    async def handler(envelope: Envelope) -> None:
        assert envelope.reply_to is not None
        await bus.publish(envelope.reply_to, {"result": envelope.payload["n"] * 2}, from_=envelope.subject)

    await bus.register_endpoint(subject)
    await bus.subscribe(subject, handler)


async def public_endpoints(bus: Bus) -> list[str]:
    """Every endpoint but the one each process may keep for its replies."""
    found = [endpoint.subject for endpoint in await bus.list_endpoints()]
    private = [subject for subject in found if subject.startswith("_reply.")]
    assert len(private) <= 1
    return [subject for subject in found if subject not in private]


async def test_reply_endpoint_ends_with_its_process(house: House, bus: Bus) -> None:
    await serve_answers(bus)
    for _ in range(3):
        await bus.request("math.double", {"n": 1}, from_="user", timeout_s=10)
    await bus.close()
    again = await house.bus()
    assert [endpoint.subject for endpoint in await again.list_endpoints()] == ["math.double"]


async def test_reply_endpoint_of_a_killed_process_is_swept(house: House, bus: Bus) -> None:
    await serve_answers(bus)
    agent = await house.agent()
    await agent.ask("request", subject="math.double", payload={"n": 1}, from_="user", timeout_s=10)
    await agent.kill()
    await bus.sweep()
    assert await public_endpoints(bus) == ["math.double"]
    assert len(await bus.list_endpoints()) == 1


async def test_request_returns_the_reply(bus: Bus) -> None:
    await serve_answers(bus)
    reply = await bus.request("math.double", {"n": 21}, from_="user", timeout_s=10)
    assert reply.payload == {"result": 42}
    assert reply.from_ == "math.double"


async def test_replies_reach_the_request_they_answer(bus: Bus) -> None:
    await serve_answers(bus)
    replies = await asyncio.gather(
        *(bus.request("math.double", {"n": n}, from_="user", timeout_s=10) for n in range(20))
    )
    assert [reply.payload["result"] for reply in replies] == [n * 2 for n in range(20)]


async def test_request_reaches_another_process(house: House, bus: Bus) -> None:
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    await agent.ask("subscribe", pattern="a.b", behaviour="reply")
    asking = await house.agent()
    reply = await asking.ask("request", subject="a.b", payload="hi", from_="user", timeout_s=10)
    assert reply["payload"] == {"answer_to": "hi"}


async def test_unanswered_request_times_out_and_leaves_no_endpoint(bus: Bus) -> None:
    await bus.register_endpoint("silent.one")
    with pytest.raises(PosthouseError) as failed:
        await bus.request("silent.one", 1, from_="user", timeout_s=0.1)
    assert failed.value.code == "request_timeout"
    assert await public_endpoints(bus) == ["silent.one"]


async def test_request_without_an_endpoint_fails_at_once(bus: Bus) -> None:
    with pytest.raises(PosthouseError) as failed:
        await asyncio.wait_for(bus.request("no.one", 1, from_="user", timeout_s=60), 5)
    assert failed.value.code == "request_undelivered"
    assert await public_endpoints(bus) == []


async def test_cancelled_request_leaves_no_endpoint(bus: Bus) -> None:
    reached = asyncio.Event()

    async def handler(_envelope: Envelope) -> None:
        reached.set()

    await bus.register_endpoint("silent.one")
    await bus.subscribe("silent.one", handler)
    task = asyncio.create_task(bus.request("silent.one", 1, from_="user", timeout_s=60))
    await bounded(reached)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await public_endpoints(bus) == ["silent.one"]


async def test_handler_may_ask_another_agent(bus: Bus) -> None:
    await serve_answers(bus)

    async def middle(envelope: Envelope) -> None:
        inner = await bus.request("math.double", envelope.payload, from_=envelope.subject, timeout_s=10)
        assert envelope.reply_to is not None
        await bus.publish(envelope.reply_to, inner.payload, from_=envelope.subject)

    await bus.register_endpoint("math.middle")
    await bus.subscribe("math.middle", middle)
    reply = await bus.request("math.middle", {"n": 4}, from_="user", timeout_s=10)
    assert reply.payload == {"result": 8}


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
async def test_invalid_timeout_is_refused(bus: Bus, timeout_s: float) -> None:
    with pytest.raises(PosthouseError) as refused:
        await bus.request("a.b", 1, from_="user", timeout_s=timeout_s)
    assert refused.value.code == "value_invalid"
