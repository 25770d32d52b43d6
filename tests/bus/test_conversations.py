"""Conversations under the default limits: the ones that people build work, and the ones without end end."""

from __future__ import annotations

import asyncio
from typing import Any

from posthouse import Bus
from posthouse.model.budget import BudgetCeiling, GivenBudget
from posthouse.model.envelope import Envelope
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.waiting import bounded, eventually

MAX_HOPS = BudgetCeiling().max_hops
LINE = 2 * MAX_HOPS


async def agent(bus: Bus, subject: str, handler: Any) -> None:
    await bus.register_endpoint(subject)
    await bus.subscribe(subject, handler)


async def no_letters(bus: Bus) -> None:
    assert [letter.reason for letter in await bus.dead_letters()] == []


# what must work


async def test_user_asks_a_who_asks_b_who_answers_a_who_answers_the_user(bus: Bus) -> None:
    user = Recorder()

    async def on_a(envelope: Envelope) -> None:
        if envelope.from_ == "user":
            await bus.publish("agent.b", "what is it?", from_="agent.a", in_reply_to=envelope.id)
        else:
            await bus.publish("user", envelope.payload, from_="agent.a")

    async def on_b(envelope: Envelope) -> None:
        await bus.publish(envelope.from_, "42", from_="agent.b")

    await agent(bus, "user", user)
    await agent(bus, "agent.a", on_a)
    await agent(bus, "agent.b", on_b)
    await bus.publish("agent.a", "?", from_="user")
    await user.wait(1)
    assert user.envelopes[0].payload == "42"
    await no_letters(bus)


async def test_lead_gets_the_reports_of_three_workers_by_handlers(bus: Bus) -> None:
    user = Recorder()
    reports: list[str] = []

    async def on_lead(envelope: Envelope) -> None:
        if envelope.from_ == "user":
            for number in range(3):
                await bus.publish(f"worker.n{number}", "work", from_="lead")
            return
        reports.append(envelope.payload)
        if len(reports) == 3:
            await bus.publish("user", sorted(reports), from_="lead")

    async def on_worker(envelope: Envelope) -> None:
        await bus.publish(envelope.from_, f"done by {envelope.subject}", from_=envelope.subject)

    await agent(bus, "user", user)
    await agent(bus, "lead", on_lead)
    for number in range(3):
        await agent(bus, f"worker.n{number}", on_worker)
    await bus.publish("lead", "please", from_="user")
    await user.wait(1)
    assert user.envelopes[0].payload == [f"done by worker.n{number}" for number in range(3)]
    await no_letters(bus)


async def test_lead_gets_the_reports_of_three_workers_by_polling(bus: Bus) -> None:
    workers = [f"worker.n{number}" for number in range(3)]
    for subject in ("user", "lead", *workers):
        await bus.register_endpoint(subject)
    asked = await bus.publish("lead", "please", from_="user")
    (task,) = await bus.read_inbox("lead")
    for worker in workers:
        await bus.publish(worker, "work", from_="lead", in_reply_to=task.id)
    for worker in workers:
        (work,) = await bus.read_inbox(worker)
        await bus.publish("lead", f"done by {worker}", from_=worker, in_reply_to=work.id)
        await bus.ack(worker, work.id)
    reports = (await bus.read_inbox("lead"))[1:]
    assert [report.payload for report in reports] == [f"done by {worker}" for worker in workers]
    await bus.publish("user", "all done", from_="lead", in_reply_to=task.id)
    (answer,) = await bus.read_inbox("user")
    assert answer.in_reply_to == asked.message_id
    await no_letters(bus)


async def test_question_answer_and_follow_up_ten_times(bus: Bus) -> None:
    answers = Recorder()

    async def on_user(envelope: Envelope) -> None:
        await answers(envelope)
        if len(answers.envelopes) < 10:
            await bus.publish("agent", "and then?", from_="user")

    async def on_agent(envelope: Envelope) -> None:
        await bus.publish(envelope.from_, "this", from_="agent")

    await agent(bus, "user", on_user)
    await agent(bus, "agent", on_agent)
    await bus.publish("agent", "what?", from_="user")
    await answers.wait(10)
    await no_letters(bus)


async def test_pipeline_of_eight_stages(bus: Bus) -> None:
    out = Recorder()
    stages = [f"stage.n{number}" for number in range(8)]

    def forward(to: str) -> Any:
        async def handler(envelope: Envelope) -> None:
            await bus.publish(to, [*envelope.payload, envelope.subject], from_=envelope.subject)

        return handler

    for stage, following in zip(stages, [*stages[1:], "out"], strict=True):
        await agent(bus, stage, forward(following))
    await agent(bus, "out", out)
    await bus.publish(stages[0], [], from_="user")
    await out.wait(1)
    assert out.envelopes[0].payload == stages
    await no_letters(bus)


async def test_nested_requests_are_answered(bus: Bus) -> None:
    async def on_a(envelope: Envelope) -> None:
        reply = await bus.request("agent.b", envelope.payload + 1, from_="agent.a", timeout_s=10)
        await bus.publish(envelope.reply_to or "", reply.payload, from_="agent.a")

    async def on_b(envelope: Envelope) -> None:
        await bus.publish(envelope.reply_to or "", envelope.payload + 1, from_="agent.b")

    await agent(bus, "agent.a", on_a)
    await agent(bus, "agent.b", on_b)
    for _ in range(3):
        assert (await bus.request("agent.a", 1, from_="user", timeout_s=10)).payload == 3
    await no_letters(bus)


# what a return is


async def test_return_names_the_message_that_it_answers_and_costs_nothing(house: House, bus: Bus) -> None:
    user = Recorder()

    async def on_agent(envelope: Envelope) -> None:
        house.clock.advance(60)
        await bus.publish("user", "answer", from_="agent")
        await bus.publish("other", "no answer", from_="agent")

    await agent(bus, "user", user)
    await agent(bus, "agent", on_agent)
    await bus.register_endpoint("other")
    asked = await bus.publish("agent", "question", from_="user", budget=GivenBudget(max_hops=1))
    await user.wait(1)
    answer = user.envelopes[0]
    assert answer.in_reply_to == asked.message_id
    assert (answer.budget.hop_count, answer.budget.max_hops, answer.budget.call_budget_remaining) == (1, 1, 99)
    assert answer.budget.ttl == house.clock.wall_ns() // 1_000_000 + 7 * 86_400_000
    (letter,) = await eventually_letters(bus)
    assert (letter.subject, letter.reason) == ("other", "max hops exceeded (1/1)")


async def test_return_may_go_to_reply_to(bus: Bus) -> None:
    asked: list[str] = []
    inbox = Recorder()

    async def on_agent(envelope: Envelope) -> None:
        asked.append(envelope.id)
        await bus.publish(envelope.reply_to or "", "answer", from_="agent")

    await agent(bus, "agent", on_agent)
    await agent(bus, "user.inbox", inbox)
    await bus.publish("agent", "?", from_="user", reply_to="user.inbox", budget=GivenBudget(max_hops=1))
    await inbox.wait(1)
    assert [envelope.in_reply_to for envelope in inbox.envelopes] == asked


async def test_return_is_no_cycle_under_the_chain_rule(house: House) -> None:
    bus = await house.bus(cycle_rule="chain")
    a = Recorder()

    async def on_a(envelope: Envelope) -> None:
        await a(envelope)
        await bus.publish("agent.b", "again", from_="agent.a")

    async def on_b(envelope: Envelope) -> None:
        await bus.publish("agent.a", "answer", from_="agent.b")

    await agent(bus, "agent.a", on_a)
    await agent(bus, "agent.b", on_b)
    await bus.publish("agent.a", "go", from_="user")
    await a.wait(2)
    (letter,) = await eventually_letters(bus)
    assert letter.reason == "cycle detected: agent.b already in chain"


async def test_fan_out_is_never_a_return(bus: Bus) -> None:
    user = Recorder()

    async def on_agent(envelope: Envelope) -> None:
        await bus.publish("users.*", "to all", from_="agent")

    await agent(bus, "users.one", user)
    await agent(bus, "agent", on_agent)
    await bus.publish("agent", "?", from_="users.one")
    await user.wait(1)
    assert (user.envelopes[0].in_reply_to, user.envelopes[0].budget.hop_count) == (None, 2)


async def test_requeued_return_is_still_a_return(bus: Bus) -> None:
    asked = await _asked(bus)
    denied = await bus.publish("user", "answer", from_="agent", in_reply_to=asked)
    assert denied.delivered_to == 1

    async def refuse(_envelope: Envelope) -> None:
        raise ValueError("not now")

    end = await bus.subscribe("user", refuse)
    (letter,) = await eventually_letters(bus)
    await end()
    await bus.requeue("user", letter.id)
    (again,) = await bus.read_inbox("user")
    assert again.in_reply_to == asked


async def test_message_that_claims_to_be_a_return_is_decided_by_the_bus_alone(bus: Bus) -> None:
    """Naming a message that came from another sender does not make a return."""
    asked = await _asked(bus)
    await bus.register_endpoint("third")
    await bus.publish("third", "by the way", from_="agent", in_reply_to=asked)
    (message,) = await bus.read_inbox("third")
    assert (message.in_reply_to, message.budget.hop_count) == (None, 2)


async def _asked(bus: Bus) -> str:
    """A question of "user" in the inbox of "agent"."""
    await bus.register_endpoint("user")
    await bus.register_endpoint("agent")
    return (await bus.publish("agent", "question", from_="user")).message_id


async def eventually_letters(bus: Bus) -> list[Any]:
    found: list[Any] = []
    done = asyncio.Event()
    end = await bus.on_dead_letter(lambda _letter: done.set())
    found = await bus.dead_letters()
    if not found:
        await bounded(done)
        found = await bus.dead_letters()
    await end()
    return found


# what must end


async def test_two_agents_that_answer_each_other_end_after_twice_max_hops(bus: Bus) -> None:
    reached: list[str] = []

    async def on_message(envelope: Envelope) -> None:
        reached.append(envelope.subject)
        await bus.publish(envelope.from_, "thank you", from_=envelope.subject)

    await agent(bus, "agent.one", on_message)
    await agent(bus, "agent.two", on_message)
    await bus.publish("agent.one", "hello", from_="agent.two")
    (letter,) = await eventually_letters(bus)
    assert letter.reason == f"max hops exceeded ({MAX_HOPS}/{MAX_HOPS})"
    assert len(reached) == LINE == 40


async def test_two_agents_that_answer_through_a_queue_end_by_in_reply_to(bus: Bus) -> None:
    """A task outside of the handlers answers, so only in_reply_to tells what it answers."""
    queue: asyncio.Queue[Envelope] = asyncio.Queue()
    reached: list[str] = []

    async def on_message(envelope: Envelope) -> None:
        queue.put_nowait(envelope)

    async def answer() -> None:
        while True:
            envelope = await queue.get()
            reached.append(envelope.subject)
            await bus.publish(envelope.from_, "thanks", from_=envelope.subject, in_reply_to=envelope.id)

    await agent(bus, "agent.one", on_message)
    await agent(bus, "agent.two", on_message)
    answering = asyncio.create_task(answer())
    await bus.publish("agent.one", "hello", from_="agent.two")
    await eventually_letters(bus)
    answering.cancel()
    assert len(reached) == LINE


async def test_handlers_that_name_an_old_message_with_each_answer_end_by_their_context(bus: Bus) -> None:
    reached: list[str] = []
    first: list[str] = []

    async def on_message(envelope: Envelope) -> None:
        reached.append(envelope.subject)
        await bus.publish(envelope.from_, "again", from_=envelope.subject, in_reply_to=first[0])

    await bus.register_endpoint("agent.one")
    await bus.register_endpoint("agent.two")
    first.append((await bus.publish("agent.one", "hello", from_="agent.two")).message_id)
    await bus.subscribe("agent.*", on_message)
    await eventually_letters(bus)
    assert len(reached) <= LINE


async def test_agent_that_writes_to_itself_ends(bus: Bus) -> None:
    count = 0

    async def on_message(envelope: Envelope) -> None:
        nonlocal count
        count += 1
        await bus.publish("loop", count, from_="loop")

    await agent(bus, "loop", on_message)
    await bus.publish("loop", 0, from_="loop")
    await eventually_letters(bus)
    assert count == LINE


async def test_two_agents_that_forward_to_each_other_end_after_max_hops(bus: Bus) -> None:
    """Without answers each message is charged: they send as a third, so no message goes to its sender."""
    reached: list[str] = []

    def forward(to: str) -> Any:
        async def handler(envelope: Envelope) -> None:
            reached.append(envelope.subject)
            await bus.publish(to, "yours", from_="dispatcher")

        return handler

    await agent(bus, "agent.one", forward("agent.two"))
    await agent(bus, "agent.two", forward("agent.one"))
    await bus.publish("agent.one", "hello", from_="user")
    await eventually(lambda: len(reached) == MAX_HOPS)
    (letter,) = await eventually_letters(bus)
    assert letter.reason == f"max hops exceeded ({MAX_HOPS}/{MAX_HOPS})"
