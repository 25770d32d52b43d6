"""Readers that are stuck or flap, and messages they cannot take: poison is parked, nothing else is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from posthouse.model.clock import FakeClock
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import confirmation, direct, reading, send, states
from tests.relay.messages.waiting import eventually

QUICK_S = 0.2


async def rows(edge: Edge, state: str = "open") -> list[dict[str, Any]]:
    """Return the rows of all queues of main, as an operator sees them."""
    reply = await edge.get(f"/v1/meshes/main/queues/rows?state={state}", await edge.token(edge.admin))
    found: list[dict[str, Any]] = reply.value["rows"]
    return found


async def settled(edge: Edge, reader: Author) -> None:
    """Wait until the deferred writes of a closed connection are committed."""
    mailboxes = edge.server.context.engine.sessions

    async def is_closed() -> bool:
        return ("main", reader.node) not in mailboxes._open

    await eventually(is_closed)
    await edge.server.context.engine.sessions.settled(("main", reader.node))


async def test_reader_without_progress_is_closed_with_4008(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay", confirm_timeout_s=QUICK_S) as edge:
        await send(edge, direct(alice, bob, "1"), direct(alice, bob, "2"))
        async with reading(edge, bob) as box:
            await box.delivered(2)
            assert await box.next("END") == [4008]
            assert box.stream.socket.close_code == 4008
        await settled(edge, bob)
        assert [(row["timeouts"], row["flaps"], row["attempts"]) for row in await rows(edge)] == [(1, 0, 1)] * 2


async def test_progress_keeps_the_connection(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock, confirm_timeout_s=1.0) as edge:
        messages = [direct(alice, bob, str(number)) for number in range(4)]
        await send(edge, *messages)
        async with reading(edge, bob) as box:
            await box.delivered(4)
            for message in messages[:3]:
                clock.advance(0.9)
                edge.server.context.engine.sessions.check_sessions()
                await box.confirm(alice, message["id"])
            clock.advance(1.1)
            edge.server.context.engine.sessions.check_sessions()
            assert await box.next("END") == [4008]


async def test_idle_mailbox_is_never_stuck(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock) as edge, reading(edge, bob) as box:
        clock.advance(3600)
        edge.server.context.engine.sessions.check_sessions()
        await send(edge, direct(alice, bob, "late"))
        assert await box.bodies(1) == ["late"]
        clock.advance(29)
        edge.server.context.engine.sessions.check_sessions()
        assert all(command[0] != "END" for command in await box.silence())


async def test_wall_clock_steps_do_not_end_a_connection(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock) as edge, reading(edge, bob) as box:
        await send(edge, direct(alice, bob, "1"))
        await box.delivered(1)
        for step in (3600, -7200, 3600):
            clock.step_wall(step)
            edge.server.context.engine.sessions.check_sessions()
        assert all(command[0] != "END" for command in await box.silence())


async def test_row_is_dead_after_five_timeouts(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay", confirm_timeout_s=QUICK_S) as edge:
        message = direct(alice, bob, "poison")
        await send(edge, message)
        for attempt in range(1, 6):
            assert await states(edge, alice, message["id"]) in ({bob.node: "queued"}, {bob.node: "sent"})
            async with reading(edge, bob) as box:
                ((_event, about),) = await box.delivered(1)
                assert about == {"was_stored": True, "attempt": attempt}
                assert await box.next("END") == [4008]
            await settled(edge, bob)
        assert await states(edge, alice, message["id"]) == {bob.node: "dead"}
        (row,) = await rows(edge, "dead")
        assert (row["id"], row["timeouts"], row["reason"]) == (message["id"], 5, "confirm_timeout")
        async with reading(edge, bob) as box:
            assert await box.silence() == []


async def test_other_ends_count_for_the_oldest_row_only_and_twenty_park_it(
    edge: Edge, alice: Author, bob: Author
) -> None:
    messages = [direct(alice, bob, str(number)) for number in range(3)]
    await send(edge, *messages)
    for _ in range(20):
        async with reading(edge, bob) as box:
            assert await box.bodies(3) == ["0", "1", "2"]
        await settled(edge, bob)
    assert await states(edge, alice, messages[0]["id"]) == {bob.node: "dead"}
    assert [(row["flaps"], row["timeouts"]) for row in await rows(edge)] == [(0, 0), (0, 0)]
    async with reading(edge, bob) as box:
        assert await box.bodies(2) == ["1", "2"]


async def test_stop_of_the_relay_counts_for_nothing(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    for _ in range(3):
        async with checked(tmp_path / "relay") as edge:
            async with reading(edge, bob) as box:
                await send(edge, direct(alice, bob, "x", "c-1"))
                await box.delivered(1)
                await edge.server.stop()
                await box.next("END")
            edge.server.stop = _nothing  # type: ignore[method-assign] # it is stopped
    async with checked(tmp_path / "relay") as edge:
        token = await edge.token(bob)
        reply = await edge.get(f"/v1/meshes/main/queues/rows?node={bob.node}", token)
        assert [(row["flaps"], row["timeouts"], row["attempts"]) for row in reply.value["rows"]] == [(0, 0, 3)]


async def _nothing() -> None:
    """Stand for a stop that has happened."""


async def test_good_messages_pass_sixty_poisonous_ones(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay", confirm_timeout_s=QUICK_S) as edge:
        poison = [direct(alice, bob, f"poison {number}") for number in range(60)]
        good = [direct(alice, bob, f"good {number}") for number in range(20)]
        await edge.publish(*poison, *good)
        arrived: list[str] = []
        connections = 0
        async with asyncio.timeout(60):
            while len(arrived) < len(good):
                connections += 1
                async with reading(edge, bob) as box:
                    while (command := await _next(box.stream)) is not None:
                        if command[0] == "DELIVER" and command[2]["content"].startswith("good"):
                            arrived.append(command[2]["content"])
                            await box.stream.send("CONFIRM", confirmation(bob, alice, [command[2]["id"]]))
                await settled(edge, bob)
        assert arrived == [f"good {number}" for number in range(20)]
        async with asyncio.timeout(60):
            while await rows(edge):
                async with reading(edge, bob) as box:
                    while await _next(box.stream) is not None:
                        pass
                await settled(edge, bob)
        assert sorted(row["id"] for row in await rows(edge, "parked")) == sorted(message["id"] for message in poison)
        assert await states(edge, alice, poison[0]["id"]) == {bob.node: "dead"}


async def _next(stream: Any) -> list[Any] | None:
    """Return the next command, or None when the connection has ended."""
    command: list[Any] = await stream.receive()
    return None if command[0] == "END" else command


async def test_rejected_message_is_parked_and_frees_the_window(edge: Edge, alice: Author, bob: Author) -> None:
    messages = [direct(alice, bob, str(number)) for number in range(3)]
    await send(edge, *messages)
    async with reading(edge, bob, window=1) as box:
        await box.delivered(1)
        await box.stream.send("REJECT", messages[0]["id"], "undecryptable")
        assert await box.next("OK") == [messages[0]["id"], True, {"id": messages[0]["id"], "state": "rejected"}]
        assert await box.bodies(1) == ["1"]
        await box.stream.send("REJECT", messages[0]["id"], "again")
        assert (await box.next("OK"))[1:][1]["code"] == "delivery_closed"
        await box.stream.send("REJECT", "0" * 64, "who")
        assert (await box.next("OK"))[1:][1]["code"] == "delivery_unknown"
    found = (await edge.get(f"/v1/messages/{messages[0]['id']}", await edge.token(alice))).value["deliveries"][0]
    assert (found["state"], found["reason"]) == ("rejected", "undecryptable")


async def test_confirmation_still_closes_a_parked_row(edge: Edge, alice: Author, bob: Author) -> None:
    message = direct(alice, bob)
    await send(edge, message)
    async with reading(edge, bob) as box:
        await box.delivered(1)
        await box.stream.send("REJECT", message["id"], "not now")
        await box.next("OK")
        assert (await box.confirm(alice, message["id"]))[1] is True
    assert await states(edge, alice, message["id"]) == {bob.node: "confirmed"}
    assert await rows(edge, "parked") == []


async def test_nobody_rejects_the_message_of_another(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    message = direct(alice, bob)
    await send(edge, message)
    async with edge.stream(carol) as stream:
        await stream.send("REJECT", message["id"], "mine")
        assert (await stream.expect("OK"))[2]["code"] == "delivery_unknown"
    assert await states(edge, alice, message["id"]) == {bob.node: "queued"}
