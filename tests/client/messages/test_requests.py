"""Requests of one client to another through a relay: answers, refusals, deadlines, lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from posthouse.client import Client, Delivery, Mailbox
from posthouse.model.errors import PosthouseError
from posthouse.model.message_api import Answer
from posthouse.model.request import read_request
from tests.client.house import House
from tests.client.messages.pair import Pair, opened, pair, some
from tests.client.waiting import until


@asynccontextmanager
async def answering(client: Client, *answers: tuple[str, str | None]) -> AsyncIterator[list[Delivery]]:
    """Answer every request with these texts, each with what it says about the request."""
    seen: list[Delivery] = []

    async def serve(mailbox: Mailbox) -> None:
        async for delivery in mailbox:
            seen.append(delivery)
            for text, state in answers:
                options = {} if state is None else {"answer": state}
                await client.send(delivery.sender, text, reply_to=delivery.id, **options)  # type: ignore[arg-type]
            mailbox.confirm(delivery)

    async with opened(client) as mailbox:
        serving = asyncio.create_task(serve(mailbox))
        try:
            yield seen
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


async def refused(asked: Client, to: str, timeout_s: float = 20.0, **options: bool) -> PosthouseError:
    with pytest.raises(PosthouseError) as failed:
        await asked.request(to, "are you there?", timeout_s, **options)  # type: ignore[arg-type]
    return failed.value


async def test_a_request_returns_the_reply_of_its_recipient(house: House) -> None:
    two = pair(house)
    async with answering(two.bob, ("yes", None)) as seen:
        answer = await two.alice.request(two.bob.key.node, "are you there?", 20)
    assert (answer.body, answer.state, answer.sender) == ("yes", "final", two.bob.key.node)
    mark = read_request(seen[0].meta)
    assert mark is not None and mark.mode == "now"


async def test_partial_answers_come_in_order_before_the_final_one(house: House) -> None:
    two, parts = pair(house), list[Answer]()
    async with answering(two.bob, ("one", "partial"), ("two", "partial"), ("three", "final")):
        answer = await two.alice.request(two.bob.key.node, "count", 20, on_partial=parts.append)
    assert [each.body for each in parts] == ["one", "two"]
    assert (answer.body, answer.state) == ("three", "final")


async def test_an_answer_that_was_returned_waits_in_no_queue_and_in_no_mailbox(house: House) -> None:
    two = pair(house)
    async with opened(two.alice) as mailbox, answering(two.bob, ("yes", None)):
        answer = await two.alice.request(two.bob.key.node, "are you there?", 20)
        await two.bob.send(two.alice.key.node, "something else")
        [other] = await some(mailbox, 1)
        assert other.body == "something else"
    assert (await two.bob.message(answer.message_id)).deliveries[0].state == "confirmed"


async def test_no_responder_is_raised_at_once_and_nothing_is_stored(house: House) -> None:
    two = pair(house)
    failure = await refused(two.alice, two.bob.key.node)
    assert (failure.code, "no open connection" in failure.fields["reason"]) == ("no_responder", True)
    assert await two.alice.count({"kinds": [1000]}) == 0


async def test_a_queued_request_waits_for_a_responder_that_connects_later(house: House) -> None:
    two = pair(house)
    asking = asyncio.create_task(two.alice.request(two.bob.key.node, "are you there?", 20, queue=True))
    requests = house.server.context.engine.requests if house.server else None
    assert requests is not None
    await until(lambda: len(requests) == 1)
    async with answering(two.bob, ("now I am", None)):
        assert (await asking).body == "now I am"


@pytest.mark.parametrize(("state", "code"), [("busy", "responder_busy"), ("failed", "request_failed")])
async def test_busy_and_failed_are_raised_with_the_reason_of_the_responder(house: House, state: str, code: str) -> None:
    two = pair(house)
    async with answering(two.bob, ("the disk is full", state)):
        failure = await refused(two.alice, two.bob.key.node)
    assert (failure.code, failure.fields["reason"]) == (code, "the disk is full")


async def test_a_request_without_an_answer_ends_at_its_deadline(house: House) -> None:
    two = pair(house)
    async with opened(two.bob):
        assert (await refused(two.alice, two.bob.key.node, 0.3)).code == "request_timeout"


async def test_a_responder_that_connects_after_the_deadline_does_not_get_the_request(house: House) -> None:
    two = pair(house)
    assert (await refused(two.alice, two.bob.key.node, 0.2, queue=True)).code == "request_timeout"
    await two.alice.send(two.bob.key.node, "later")
    async with opened(two.bob) as mailbox:
        [delivery] = await some(mailbox, 1)
        assert delivery.body == "later"
        await mailbox.confirm(delivery)
    stored = (await two.alice.query({"kinds": [1000]}, limit=10)).events
    assert [(await two.states(each.event.id))[0] for each in stored] == ["confirmed", "confirmed"]


async def test_a_request_survives_a_restart_of_the_relay(house: House) -> None:
    two = pair(house)
    async with opened(two.bob) as mailbox:
        asking = asyncio.create_task(two.alice.request(two.bob.key.node, "are you there?", 20))
        [delivery] = await some(mailbox, 1)
        await mailbox.confirm(delivery)
        await house.down()
        await house.up()
        await two.bob.send(two.alice.key.node, "after the restart", reply_to=delivery.id)
        assert (await asking).body == "after the restart"


async def test_only_the_recipient_answers_a_request(house: House) -> None:
    two, mallory = pair(house), house.client()
    async with opened(two.bob) as mailbox:
        asking = asyncio.create_task(two.alice.request(two.bob.key.node, "are you there?", 20))
        [delivery] = await some(mailbox, 1)
        await mallory.send(two.alice.key.node, "I am bob", reply_to=delivery.id)
        await two.bob.send(two.alice.key.node, "I am", reply_to=delivery.id)
        assert (await asking).body == "I am"


async def test_the_first_final_answer_in_a_topic_ends_a_request_to_it(house: House) -> None:
    two = pair(house)
    await two.alice.meshes.create_topic("main", "questions")
    await two.bob.meshes.subscribe("main", "questions")
    async with answering(two.bob, ("me", None)):
        answer = await two.alice.request("#questions", "who can build?", 20)
    assert (answer.body, answer.sender) == ("me", two.bob.key.node)


@pytest.mark.parametrize("timeout_s", [0, -1, 3601])
async def test_a_timeout_out_of_bounds_is_refused(house: House, timeout_s: float) -> None:
    two = pair(house)
    assert (await refused(two.alice, two.bob.key.node, timeout_s)).code == "value_invalid"


async def test_an_answer_needs_the_request_that_it_answers(house: House) -> None:
    two: Pair = pair(house)
    with pytest.raises(PosthouseError) as failed:
        await two.bob.send(two.alice.key.node, "yes", answer="final")
    assert failed.value.code == "value_invalid"
