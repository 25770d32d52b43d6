from __future__ import annotations

import asyncio
import pickle

import pytest

from posthouse import Bus, RequestTimeout, Transient
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.limits import settled
from tests.bus.mailboxes import hash_of
from tests.bus.waiting import bounded, eventually


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


async def test_depths_show_no_reply_endpoint(bus: Bus) -> None:
    await serve_answers(bus)
    await bus.request("math.double", {"n": 1}, from_="user", timeout_s=10)
    assert list(await bus.depths()) == ["math.double"]


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


async def failing(_envelope: Envelope) -> None:
    raise LookupError("no such model")


async def test_failing_handler_settles_the_caller_at_once_with_the_reason(bus: Bus) -> None:
    await bus.register_endpoint("math.broken")
    await bus.subscribe("math.broken", failing)
    with pytest.raises(PosthouseError) as failed:
        await asyncio.wait_for(bus.request("math.broken", 1, from_="user", timeout_s=3_600), 15)
    assert failed.value.code == "request_failed"
    assert failed.value.fields["subject"] == "math.broken"
    assert "LookupError: no such model" in failed.value.fields["reason"]
    assert [letter.subject for letter in await bus.dead_letters()] == ["math.broken"]


async def test_failing_handler_of_another_process_settles_the_caller(house: House, bus: Bus) -> None:
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    await agent.ask("subscribe", pattern="a.b", behaviour="fail")
    with pytest.raises(PosthouseError) as failed:
        await asyncio.wait_for(bus.request("a.b", 1, from_="user", timeout_s=3_600), 15)
    assert failed.value.code == "request_failed"


async def test_refused_handler_settles_the_caller_with_the_refusal(house: House) -> None:
    bus = await house.bus(reliability={"backpressure": {"maxMailboxSize": 1}})
    await bus.register_endpoint("next.stage")
    await bus.publish("next.stage", "fills it", from_="c")

    async def middle(_envelope: Envelope) -> None:
        await bus.publish("next.stage", "work", from_="math.middle")

    await bus.register_endpoint("math.middle")
    await bus.subscribe("math.middle", middle)
    with pytest.raises(PosthouseError) as failed:
        await asyncio.wait_for(bus.request("math.middle", 1, from_="user", timeout_s=3_600), 15)
    assert (failed.value.code, "mailbox full" in failed.value.fields["reason"]) == ("request_failed", True)


async def test_failure_is_never_sent_to_an_ordinary_reply_subject(bus: Bus) -> None:
    for subject in ("math.broken", "user.inbox", "user.inbox.failed"):
        await bus.register_endpoint(subject)
    await bus.subscribe("math.broken", failing)
    await bus.publish("math.broken", 1, from_="user", reply_to="user.inbox")
    await settled(bus, "math.broken")
    await bus.publish("user.inbox", "the next message", from_="c")
    assert [message.payload for message in await bus.read_inbox("user.inbox")] == ["the next message"]
    assert await bus.read_inbox("user.inbox.failed") == []


async def test_failure_of_a_request_whose_caller_is_gone_leaves_no_second_dead_letter(house: House, bus: Bus) -> None:
    await bus.register_endpoint("math.broken")
    caller = await house.bus()
    asking = asyncio.create_task(caller.request("math.broken", 1, from_="user", timeout_s=3_600))
    await eventually(lambda: house.mailbox("math.broken").new)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await caller.close()
    await bus.subscribe("math.broken", failing)
    await settled(bus, "math.broken")
    assert [letter.subject for letter in await bus.dead_letters()] == ["math.broken"]


async def test_failures_are_not_charged_to_the_rate_of_the_failing_endpoint(house: House) -> None:
    limits = {
        "rateLimit": {"maxPerWindow": 0, "perSenderOverrides": {"user": 10}},
        "circuitBreaker": {"enabled": False},
    }
    bus = await house.bus(reliability=limits)
    await bus.register_endpoint("math.broken")
    await bus.subscribe("math.broken", failing)
    with pytest.raises(PosthouseError) as failed:
        await asyncio.wait_for(bus.request("math.broken", 1, from_="user", timeout_s=3_600), 15)
    assert failed.value.code == "request_failed"


async def test_timeout_of_a_request_is_a_timeout_error(bus: Bus) -> None:
    await bus.register_endpoint("silent.one")
    with pytest.raises(TimeoutError) as late:
        await bus.request("silent.one", 1, from_="user", timeout_s=0.05)
    assert isinstance(late.value, RequestTimeout)
    assert isinstance(late.value, Transient)
    assert late.value.code == "request_timeout"
    assert str(late.value) == "no reply from silent.one within 0.05 s"
    again = pickle.loads(pickle.dumps(late.value))
    assert (type(again), str(again), again.fields) == (RequestTimeout, str(late.value), late.value.fields)


async def test_late_answers_are_dead_letters_and_open_no_breaker(house: House) -> None:
    bus = await house.bus(reliability={"circuitBreaker": {"failureThreshold": 1}})
    asked: list[Envelope] = []

    async def slow(envelope: Envelope) -> None:
        asked.append(envelope)

    await bus.register_endpoint("slow.one")
    await bus.subscribe("slow.one", slow)
    for number in range(2):
        with pytest.raises(TimeoutError):
            await bus.request("slow.one", number, from_="user", timeout_s=0.05)
    for envelope in await eventually(lambda: asked, lambda seen: len(seen) == 2):
        assert envelope.reply_to is not None
        result = await bus.publish(envelope.reply_to, f"answer to {envelope.payload}", from_="slow.one")
        assert result.delivered_to == 1
    failed = house.root / "mailboxes" / hash_of(f"{asked[0].reply_to}".rpartition(".")[0] + ".>") / "failed"
    await eventually(lambda: len(list(failed.iterdir())) == 2)
    letters = await bus.dead_letters()
    assert [(letter.reason, letter.envelope and letter.envelope.payload) for letter in letters] == [
        ("no request waits for this reply", "answer to 0"),
        ("no request waits for this reply", "answer to 1"),
    ]


async def test_closing_the_bus_ends_its_open_requests(bus: Bus) -> None:
    await bus.register_endpoint("silent.one")
    asking = asyncio.create_task(bus.request("silent.one", 1, from_="user", timeout_s=3_600))
    await eventually(lambda: list((bus.path / "mailboxes" / hash_of("silent.one") / "new").iterdir()))
    await bus.close()
    with pytest.raises(PosthouseError) as ended:
        await asyncio.wait_for(asking, 15)
    assert ended.value.code == "bus_closed"
