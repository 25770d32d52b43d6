"""Mailboxes: order, window, backlog and tail, one connection after another, two at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.relay.messages.reader_session import ReaderSession
from posthouse.relay.messages.settings import ConnectionPolicy
from posthouse.relay.wire.delivery_rows import DeliveryPage
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import Event, Reading, confirmation, direct, reading, states
from tests.relay.messages.waiting import eventually


async def queue(edge: Edge, alice: Author, bob: Author, count: int, start: int = 0) -> list[Event]:
    """Queue numbered messages."""
    messages = [direct(alice, bob, str(number)) for number in range(start, start + count)]
    await edge.publish(*messages)
    return messages


async def confirm_all(box: Reading, sender: Author, ids: list[str]) -> None:
    """Confirm messages in batches of 50."""
    for start in range(0, len(ids), 50):
        ok = await box.confirm(sender, *ids[start : start + 50])
        assert ok[1] is True, ok


async def test_backlog_comes_in_order_within_the_window(edge: Edge, alice: Author, bob: Author) -> None:
    messages = await queue(edge, alice, bob, 120)
    ids = [message["id"] for message in messages]
    async with reading(edge, bob, window=30) as box:
        assert await box.next("QUEUE_STATUS") == [120]
        assert await box.bodies(30) == [str(number) for number in range(30)]
        assert [command for command in await box.silence() if command[0] == "DELIVER"] == []
        await box.confirm(alice, *ids[:10])
        assert await box.bodies(10) == [str(number) for number in range(30, 40)]
        await confirm_all(box, alice, ids[10:40])
        assert await box.bodies(30) == [str(number) for number in range(40, 70)]


async def test_session_with_nothing_to_send_has_no_task_until_something_comes(
    edge: Edge, alice: Author, bob: Author
) -> None:
    messages = await queue(edge, alice, bob, 3)
    async with reading(edge, bob, window=2) as box:
        (connection,) = edge.server.context.connections

        async def has_no_task() -> bool:
            return not connection._tasks

        assert await box.bodies(2) == ["0", "1"]
        await eventually(has_no_task)
        await box.confirm(alice, messages[0]["id"])
        assert await box.bodies(1) == ["2"]
        await eventually(has_no_task)


async def test_frames_have_at_most_fifty_messages(edge: Edge, alice: Author, bob: Author) -> None:
    await queue(edge, alice, bob, 120)
    async with edge.stream(bob) as stream:
        await stream.send("RECEIVE", "main", {"window": 1000})
        sizes: list[int] = []
        while sum(sizes) < 120:
            first = await stream.receive()
            frame = [first, *stream._commands]
            stream._commands = []
            sizes.append(sum(command[0] == "DELIVER" for command in frame))
    assert [size for size in sizes if size] == [50, 50, 20]


async def test_new_messages_during_a_backlog_arrive_after_it(edge: Edge, alice: Author, bob: Author) -> None:
    messages = await queue(edge, alice, bob, 150)
    async with reading(edge, bob, window=50) as box:
        first = await box.delivered(50)
        late = await queue(edge, alice, bob, 20, start=150)
        await confirm_all(box, alice, [event["id"] for event, _ in first])
        rest = await box.delivered(50)
        await confirm_all(box, alice, [event["id"] for event, _ in rest])
        last = await box.delivered(50)
        await confirm_all(box, alice, [event["id"] for event, _ in last])
        news = await box.delivered(20)
    seen = [event["id"] for event, _ in first + rest + last + news]
    assert seen == [message["id"] for message in messages + late]
    assert all(about["was_stored"] for _, about in first + rest + last + news)


async def test_unconfirmed_messages_come_again_on_the_next_connection(edge: Edge, alice: Author, bob: Author) -> None:
    messages = await queue(edge, alice, bob, 10)
    async with reading(edge, bob) as box:
        assert await box.bodies(10) == [str(number) for number in range(10)]
        await box.confirm(alice, messages[0]["id"], messages[3]["id"])
    async with reading(edge, bob) as box:
        assert await box.next("QUEUE_STATUS") == [8]
        again = await box.delivered(8)
    assert [event["content"] for event, _ in again] == ["1", "2", "4", "5", "6", "7", "8", "9"]
    assert {about["attempt"] for _, about in again} == {2}


async def test_message_that_is_confirmed_while_a_page_with_it_is_read_is_not_sent(
    edge: Edge, alice: Author, bob: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = await queue(edge, alice, bob, 3)
    confirmed = confirmation(bob, alice, [message["id"] for message in messages[:2]])
    sessions = edge.server.context.engine.sessions
    read = sessions.read_page
    sizes: list[int] = []

    async def read_slowly(session: ReaderSession, after: int, limit: int) -> DeliveryPage:
        page = await read(session, after, limit)
        sizes.append(page.size)
        if len(sizes) == 1:  # a client that connects again repeats its confirmations before RECEIVE
            await edge.publish(confirmed)
        return page

    monkeypatch.setattr(sessions, "read_page", read_slowly)
    async with reading(edge, bob, window=1) as box:
        assert await box.bodies(1) == ["2"]
        assert [command for command in await box.silence() if command[0] == "DELIVER"] == []
    assert sizes[:2] == [1, 1]


async def test_was_stored_never_changes(edge: Edge, alice: Author, bob: Author) -> None:
    await queue(edge, alice, bob, 1)
    async with reading(edge, bob) as box:
        await box.delivered(1)
        await queue(edge, alice, bob, 1, start=1)
        ((event, about),) = await box.delivered(1)
        assert (event["content"], about) == ("1", {"was_stored": False, "attempt": 1})
    async with reading(edge, bob) as box:
        again = await box.delivered(2)
        assert [about["was_stored"] for _, about in again] == [True, False]
        await confirm_all(box, alice, [event["id"] for event, _ in again])
    async with reading(edge, alice) as box:
        items, _ = await box.next("CONFIRMED")
        assert [item["was_stored"] for item in items] == [True, False]


async def test_full_window_at_the_tail_makes_a_backlog(edge: Edge, alice: Author, bob: Author) -> None:
    async with reading(edge, bob, window=5) as box:
        await box.silence()
        await queue(edge, alice, bob, 12)
        got = await box.delivered(5)
        await confirm_all(box, alice, [event["id"] for event, _ in got])
        more = await box.delivered(5)
        await confirm_all(box, alice, [event["id"] for event, _ in more])
        last = await box.delivered(2)
        assert [event["content"] for event, _ in got + more + last] == [str(number) for number in range(12)]
        assert [about["was_stored"] for _, about in more + last] == [True] * 7


async def test_two_senders_race_a_reader_that_reconnects_two_hundred_times(
    edge: Edge, alice: Author, carol: Author, bob: Author
) -> None:
    per_sender, reconnects = 150, 200
    authors = {alice.node: alice, carol.node: carol}
    waiting: set[int] = set()
    confirmed: list[int] = []

    async def write(author: Author) -> None:
        for number in range(per_sender):
            reply = await edge.post("/v1/events", direct(author, bob, f"{number}"))
            waiting.add(reply.value["seq"])

    async def read(number: int) -> None:
        seen: list[int] = []
        before = min(waiting, default=0)
        async with edge.stream(bob) as stream:
            await stream.send("RECEIVE", "main", {"window": 20})
            while number % 3 or not seen:
                command = await stream.receive()
                if command[0] == "DELIVER":
                    seen.append(command[1])
                    if number % 3 and len(seen) == 1:
                        sender = authors[command[2]["pubkey"]]
                        await stream.send("CONFIRM", confirmation(bob, sender, [command[2]["id"]]))
                elif command[0] == "OK":
                    assert command[2] is True, command
                    confirmed.append(seen[0])
                    waiting.discard(seen[0])
                    break
        assert seen == sorted(set(seen))
        assert not before or seen[0] <= before

    async with asyncio.timeout(60):
        writers = [asyncio.create_task(write(author)) for author in authors.values()]
        for number in range(reconnects):
            await read(number)
        await asyncio.gather(*writers)
    async with reading(edge, bob, window=1000) as box:
        (count,) = await box.next("QUEUE_STATUS")
        rest = await box.delivered(count)
        bodies = {node: [int(event["content"]) for event, _ in rest if event["pubkey"] == node] for node in authors}
        assert all(numbers == sorted(set(numbers)) for numbers in bodies.values())
        assert count + len(confirmed) == count + len(set(confirmed)) == 2 * per_sender
        for node, author in authors.items():
            await confirm_all(box, author, [event["id"] for event, _ in rest if event["pubkey"] == node])


async def test_newer_connection_replaces_the_older(edge: Edge, alice: Author, bob: Author) -> None:
    messages = await queue(edge, alice, bob, 3)
    async with reading(edge, bob) as old:
        await old.delivered(3)
        async with reading(edge, bob) as new:
            assert await old.next("END") == [4003]
            again = await new.delivered(3)
            assert [event["id"] for event, _ in again] == [message["id"] for message in messages]
            shown = (await edge.get("/v1/meshes/main/queues/rows", await edge.token(edge.admin))).value["rows"]
            assert {(row["timeouts"], row["flaps"]) for row in shown} == {(0, 0)}


async def test_same_instance_reconnecting_is_closed_with_1000(edge: Edge, bob: Author) -> None:
    async with reading(edge, bob, instance="a") as old, reading(edge, bob, instance="a"):
        assert await old.next("END") == [1000]
    async with reading(edge, bob, instance="a") as old, reading(edge, bob, instance="b"):
        assert await old.next("END") == [4003]


async def test_late_confirmations_of_a_replaced_connection_count(edge: Edge, alice: Author, bob: Author) -> None:
    (message,) = await queue(edge, alice, bob, 1)
    async with edge.stream(bob, autoping=True) as stream:
        await stream.send("RECEIVE", "main", {})
        await stream.until("DELIVER")
        async with reading(edge, bob) as new:
            await new.delivered(1)
            # the close frame is on its way to the old connection, which has not read it
            await stream.send("CONFIRM", confirmation(bob, alice, [message["id"]]))

            async def is_confirmed() -> bool:
                return await states(edge, alice, message["id"]) == {bob.node: "confirmed"}

            await eventually(is_confirmed)


async def test_concurrent_mailboxes_both_get_everything(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay", policy=ConnectionPolicy.ALLOW_CONCURRENT) as edge:
        messages = await queue(edge, alice, bob, 5)
        async with reading(edge, bob, window=10) as one, reading(edge, bob, window=10) as two:
            ids = [message["id"] for message in messages]
            assert [event["id"] for event, _ in await one.delivered(5)] == ids
            assert [event["id"] for event, _ in await two.delivered(5)] == ids
            await one.confirm(alice, *ids)
            await queue(edge, alice, bob, 10, start=5)
            assert await two.bodies(10) == [str(number) for number in range(5, 15)]
            assert await one.bodies(10) == [str(number) for number in range(5, 15)]


async def test_connections_without_a_mailbox_disturb_nobody(edge: Edge, alice: Author, bob: Author) -> None:
    async with reading(edge, bob) as box, edge.stream(bob) as tail:
        await box.silence()
        await tail.send("REQ", "tail", {}, {"kinds": [1000]})
        await tail.until("EOSE")
        (message,) = await queue(edge, alice, bob, 1)
        assert (await tail.expect("EVENT"))[1] == message
        assert await box.bodies(1) == ["0"]
        await tail.socket.close()
        await queue(edge, alice, bob, 1, start=1)
        assert await box.bodies(1) == ["1"]
        assert await states(edge, alice, message["id"]) == {bob.node: "sent"}


async def test_second_receive_on_one_connection_is_refused(edge: Edge, bob: Author) -> None:
    async with reading(edge, bob) as box:
        await box.stream.send("RECEIVE", "main", {})
        assert (await box.next("NOTICE"))[0] == "mailbox_open"


async def test_receiving_needs_authentication_and_the_right_to_read(edge: Edge, bob: Author) -> None:
    async with edge.stream() as stream:
        await stream.send("RECEIVE", "main", {})
        assert await stream.notice() == "authentication_required"
    await edge.post("/v1/meshes", {"name": "lab", "open": False}, await edge.token(edge.admin))
    async with edge.stream(bob) as stream:
        await stream.send("RECEIVE", "lab", {})
        assert await stream.notice() == "not_member"


async def test_mailbox_of_a_node_that_lost_its_right_gets_nothing_more(edge: Edge, alice: Author, bob: Author) -> None:
    async with reading(edge, bob) as box:
        await box.silence()
        admin = await edge.token(edge.admin)
        await edge.post("/v1/meshes/main/access", {"node": bob.node, "read": "deny"}, admin)
        await queue(edge, alice, bob, 1)
        assert await box.next("END") == [1008]
        assert all(command[0] != "DELIVER" for command in box.other)


@pytest.mark.parametrize("window", [1, 7, 50, 1000])
async def test_nothing_is_lost_however_the_reader_confirms(edge: Edge, alice: Author, bob: Author, window: int) -> None:
    messages = await queue(edge, alice, bob, 60)
    seen: list[str] = []
    async with reading(edge, bob, window=window) as box:
        while len(seen) < 60:
            ((event, _about),) = await box.delivered(1)
            seen.append(event["id"])
            await box.confirm(alice, event["id"])
    assert seen == [message["id"] for message in messages]
