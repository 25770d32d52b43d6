from __future__ import annotations

import pytest

from posthouse import Bus
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.waiting import eventually


async def test_inbox_is_read_oldest_first_in_pages_and_consumes_nothing(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    for number in range(7):
        await bus.publish("a.b", number, from_="c")
    seen: list[Envelope] = []
    after: str | None = None
    while page := await bus.read_inbox("a.b", 3, after=after):
        assert len(page) <= 3
        seen.extend(page)
        after = page[-1].id
    assert [envelope.payload for envelope in seen] == list(range(7))
    assert len(await bus.read_inbox("a.b", 100)) == 7


async def test_acknowledged_message_is_gone_and_only_that_one(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    ids = [(await bus.publish("a.b", number, from_="c")).message_id for number in range(3)]
    assert await bus.ack("a.b", ids[1]) == "acked"
    assert [envelope.id for envelope in await bus.read_inbox("a.b", 10)] == [ids[0], ids[2]]
    assert house.mailbox("a.b").failed == []
    assert house.mailbox("a.b").depth == 2


async def test_second_acknowledgement_and_an_unknown_id_say_so(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    message_id = (await bus.publish("a.b", 1, from_="c")).message_id
    await bus.ack("a.b", message_id)
    assert await bus.ack("a.b", message_id) == "unknown"
    assert await bus.ack("a.b", "01ARZ3NDEKTSV4RRFFQ69G5FAV") == "unknown"


async def test_expired_mail_is_not_shown_and_becomes_a_dead_letter(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "old", from_="c")
    house.clock.advance(7 * 86_400 + 1)
    await bus.publish("a.b", "fresh", from_="c")
    assert [envelope.payload for envelope in await bus.read_inbox("a.b", 10)] == ["fresh"]


@pytest.mark.parametrize("hostile", ["../../x", "..", "", "a/b", "x" * 300, "\x00"])
async def test_hostile_id_never_leaves_the_mailbox(house: House, bus: Bus, hostile: str) -> None:
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    (house.root / "x").write_text("precious")
    with pytest.raises(PosthouseError) as refused:
        await bus.ack("a.b", hostile)
    assert refused.value.code == "id_invalid"
    assert (house.root / "x").read_text() == "precious"
    assert house.mailbox("a.b").depth == 1


@pytest.mark.parametrize("limit", [0, -1])
async def test_invalid_limit_is_refused(bus: Bus, limit: int) -> None:
    await bus.register_endpoint("a.b")
    with pytest.raises(PosthouseError) as refused:
        await bus.read_inbox("a.b", limit)
    assert refused.value.code == "value_invalid"


async def test_inbox_of_an_unknown_endpoint_says_so(bus: Bus) -> None:
    with pytest.raises(PosthouseError) as refused:
        await bus.read_inbox("no.one", 10)
    assert refused.value.code == "endpoint_unknown"


async def test_acknowledging_a_message_that_another_process_serves_returns_being_served(house: House, bus: Bus) -> None:
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    await agent.ask("subscribe", pattern="a.b", behaviour="hold")
    await agent.ask("publish", subject="a.b", payload=1, from_="c")
    result = await agent.ask("publish", subject="a.b", payload=2, from_="c")
    await agent.wait_handled(1)
    assert await bus.ack("a.b", result["message_id"]) == "being_served"
    assert house.mailbox("a.b").depth == 2
    await agent.ask("let_go")


async def test_polling_process_and_serving_process_take_turns(house: House, bus: Bus) -> None:
    agent = await house.agent()
    await agent.ask("register", subject="a.b")
    first = await bus.publish("a.b", 1, from_="c")
    assert await bus.ack("a.b", first.message_id) == "acked"
    await agent.ask("subscribe", pattern="a.b")
    await bus.publish("a.b", 2, from_="c")
    assert await agent.wait_handled(1) == [2]


async def test_inbox_shows_messages_that_wait_behind_one_that_is_being_handled(bus: Bus) -> None:
    held = Recorder(holds=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", held)
    await bus.publish("a.b", "in work", from_="c")
    await held.wait(1)
    await bus.publish("a.b", "waiting", from_="c")
    assert [envelope.payload for envelope in await bus.read_inbox("a.b", 10)] == ["waiting"]
    held.release.set()
    await eventually(lambda: held.finished == 2)
