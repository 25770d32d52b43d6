"""Bounds of queues: how many, how long, from whom; and what operators do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from posthouse.model.clock import STEADY_S, FakeClock
from posthouse.model.limits import QUEUE_TTL_S
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import confirmation, direct, post, reading, send, states
from tests.relay.messages.waiting import eventually


async def operator(edge: Edge, path: str, body: Any = None) -> Any:
    """Ask as the admin of main."""
    token = await edge.token(edge.admin)
    method = "GET" if body is None else "POST"
    reply = await edge.send(method, f"/v1/meshes/main/queues{path}", body, token)
    assert reply.status == 200, reply.body
    return reply.value


async def test_direct_message_to_a_full_queue_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay", queue_max=3) as edge:
        messages = [direct(alice, bob, str(number), f"c-{number}") for number in range(4)]
        replies = await send(edge, *messages)
        assert [reply.status for reply in replies] == [201, 201, 201, 429]
        problem = replies[3].value
        assert (problem["code"], problem["id"], problem["recipient"]) == ("queue_full", messages[3]["id"], bob.node)
        assert problem["client_message_id"] == "c-3"
        async with edge.stream(alice) as stream:
            await stream.send("EVENT", messages[3])
            commands = await stream.until("QUEUE_FULL")
            assert commands[0][:3] == ["OK", messages[3]["id"], False]
            assert commands[-1][1:3] == [messages[3]["id"], bob.node]
        await send(edge, confirmation(bob, alice, [messages[1]["id"]]))
        assert [reply.status for reply in await send(edge, messages[3])] == [201]


async def test_cap_counts_rows_in_flight(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay", queue_max=3) as edge, reading(edge, bob) as box:
        messages = [direct(alice, bob, str(number)) for number in range(4)]
        assert [reply.status for reply in await send(edge, *messages)] == [201, 201, 201, 429]
        await box.delivered(3)
        assert [reply.status for reply in await send(edge, messages[3])] == [429]
        await box.confirm(alice, messages[0]["id"])
        assert [reply.status for reply in await send(edge, messages[3])] == [201]


async def test_one_list_stops_exactly_at_the_cap(tmp_path: Path) -> None:
    alice, bob, carol = Author(), Author(), Author()
    async with checked(tmp_path / "relay", queue_max=5) as edge:
        events = [direct(alice, bob, str(number)) for number in range(8)] + [direct(alice, carol, "other")]
        results = (await edge.post("/v1/events", {"events": events})).value["results"]
        assert [result["status"] for result in results] == [201] * 5 + [429, 409, 409, 201]
        assert [result.get("code") for result in results[5:8]] == ["queue_full", "earlier_refused", "earlier_refused"]


async def test_topic_with_one_full_reader_names_it(tmp_path: Path) -> None:
    alice, bob, carol = Author(), Author(), Author()
    async with checked(tmp_path / "relay", queue_max=2) as edge:
        await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))
        for author in (bob, carol):
            await edge.post("/v1/meshes/main/subscriptions", {"pattern": "news"}, await edge.token(author))
        await send(edge, direct(alice, bob, "1"), direct(alice, bob, "2"))
        message = post(alice, "news", "to all")
        (reply,) = await send(edge, message)
        assert reply.status == 201
        assert reply.value["not_queued"] == [{"recipient": bob.node, "reason": "queue_full"}]
        assert await states(edge, alice, message["id"]) == {carol.node: "queued"}


@pytest.mark.parametrize(("late_ns", "is_delivered"), [(0, True), (1, False)])
async def test_message_expires_when_its_age_exceeds_the_ttl(tmp_path: Path, late_ns: int, is_delivered: bool) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock) as edge:
        message = direct(alice, bob, "old")
        await send(edge, message)
        clock._wall_ns += QUEUE_TTL_S * 10**9 + late_ns
        async with reading(edge, bob) as box:
            found = await box.silence()
            assert [command[0] for command in found] == (["QUEUE_STATUS", "DELIVER"] if is_delivered else [])
        assert await edge.server.context.engine.sweeper.sweep() == (0 if is_delivered else 1)
        assert await states(edge, alice, message["id"]) == {bob.node: "sent" if is_delivered else "expired"}


async def test_sweep_says_how_many_it_cleaned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock) as edge:
        await send(edge, *[direct(alice, bob, str(number)) for number in range(3)])
        clock.advance(QUEUE_TTL_S + 1)
        await send(edge, direct(alice, bob, "young"))
        assert await edge.server.context.engine.sweeper.sweep() == 3
        assert f"Cleaned 3 expired messages for {bob.node}" in capsys.readouterr().out
        async with reading(edge, bob) as box:
            assert await box.bodies(1) == ["young"]


async def test_clock_that_is_days_ahead_expires_nothing_before_it_has_been_steady_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock, sweep_s=0.01, confirm_timeout_s=0.2) as edge:
        sessions = edge.server.context.engine.sessions
        check, rounds = sessions.check_sessions, 0

        def count_round() -> None:
            nonlocal rounds
            rounds += 1
            check()

        async def let_sweep() -> None:
            before = rounds
            await eventually(lambda: _is_true(rounds > before + 3))

        monkeypatch.setattr(sessions, "check_sessions", count_round)

        clock.advance(STEADY_S)
        message = direct(alice, bob, "keep me")
        await send(edge, message)
        clock.step_wall(QUEUE_TTL_S + 1)
        await let_sweep()
        clock.step_wall(-QUEUE_TTL_S - 1)
        assert await states(edge, alice, message["id"]) == {bob.node: "queued"}
        await let_sweep()
        clock.advance(STEADY_S)
        await let_sweep()
        assert await states(edge, alice, message["id"]) == {bob.node: "queued"}
        clock.advance(QUEUE_TTL_S + 1)
        await let_sweep()
        assert await states(edge, alice, message["id"]) == {bob.node: "expired"}


async def _is_true(value: bool) -> bool:
    return value


async def test_confirmation_never_closes_an_expired_row(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock) as edge:
        messages = [direct(alice, bob, str(number)) for number in range(2)]
        await send(edge, *messages)
        async with reading(edge, bob, window=2) as box:
            await box.delivered(2)
            clock.advance(QUEUE_TTL_S + 1)
            ok = await box.confirm(alice, messages[0]["id"])
            assert (ok[1], ok[2]["ignored"][0]["reason"]) == (False, "expired")
            await edge.server.context.engine.sweeper.sweep()
            ok = await box.confirm(alice, messages[1]["id"])
            assert (ok[1], ok[2]["ignored"][0]["reason"]) == (False, "expired")
            await send(edge, direct(alice, bob, "2"), direct(alice, bob, "3"))
            assert await box.bodies(2) == ["2", "3"]  # what expired takes no place in the window
        assert await states(edge, alice, messages[0]["id"]) == {bob.node: "expired"}


async def test_full_queue_of_expired_messages_has_room(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock, queue_max=2) as edge:
        await send(edge, direct(alice, bob, "1"), direct(alice, bob, "2"))
        clock.advance(QUEUE_TTL_S + 1)
        assert [reply.status for reply in await send(edge, direct(alice, bob, "3"))] == [201]


async def test_clock_that_steps_back_neither_loses_nor_reorders(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock) as edge:
        for number, step in enumerate((0, -3600, 7200, -86_400, 600)):
            clock.step_wall(step)
            alice._last_ns = 0  # the sender's clock steps too
            assert [reply.status for reply in await send(edge, direct(alice, bob, str(number)))] == [201]
        async with reading(edge, bob) as box:
            assert await box.bodies(5) == ["0", "1", "2", "3", "4"]


async def test_block_before_queueing_drops_silently(edge: Edge, alice: Author, bob: Author) -> None:
    token = await edge.token(bob)
    assert (await edge.post("/v1/meshes/main/blocks", {"node": alice.node}, token)).status in (200, 201)
    message = direct(alice, bob)
    async with reading(edge, bob) as box:
        (reply,) = await send(edge, message)
        assert (reply.status, reply.value["not_queued"]) == (201, [])
        assert await box.silence() == []
    assert await states(edge, alice, message["id"]) == {bob.node: "queued"}
    assert await states(edge, bob, message["id"]) == {bob.node: "blocked"}
    (reply,) = await send(edge, confirmation(bob, alice, [message["id"]]))
    assert reply.value["ignored"][0]["reason"] == "blocked"
    await edge.send("DELETE", f"/v1/meshes/main/blocks?node={alice.node}", token=token)
    await send(edge, direct(alice, bob, "friends again"))
    async with reading(edge, bob) as box:
        assert await box.bodies(1) == ["friends again"]


async def test_block_drops_what_was_queued_too(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    messages = [direct(alice, bob, "unwanted"), direct(carol, bob, "wanted"), direct(alice, bob, "unwanted too")]
    await send(edge, *messages)
    async with reading(edge, bob, window=1) as box:
        await box.delivered(1)
        await edge.post("/v1/meshes/main/blocks", {"node": alice.node}, await edge.token(bob))
        assert await box.bodies(1) == ["wanted"]
    assert await states(edge, alice, messages[0]["id"]) == {bob.node: "queued"}
    assert await states(edge, alice, messages[2]["id"]) == {bob.node: "queued"}


async def test_blocked_looks_expired_to_its_sender_after_the_ttl(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock) as edge:
        await edge.post("/v1/meshes/main/blocks", {"node": alice.node}, await edge.token(bob))
        message = direct(alice, bob)
        await send(edge, message)
        clock.advance(QUEUE_TTL_S + 1)
        assert await states(edge, alice, message["id"]) == {bob.node: "expired"}


async def test_operator_purges_and_requeues(edge: Edge, alice: Author, bob: Author) -> None:
    messages = [direct(alice, bob, str(number)) for number in range(4)]
    ids = [message["id"] for message in messages]
    await send(edge, *messages)
    async with reading(edge, bob) as box:
        await box.delivered(4)
        for id_ in ids[:2]:
            await box.stream.send("REJECT", id_, "no")
            await box.next("OK")
        (queue,) = (await operator(edge, ""))["queues"]
        assert (queue["recipient"], queue["depth"], queue["parked"]) == (bob.node, 2, 2)
        assert await operator(edge, "/purge", {"node": bob.node, "ids": [ids[2]]}) == {"purged": [ids[2]]}
        requeued = await operator(edge, "/requeue", {"node": bob.node})
        assert requeued == {"requeued": ids[:2], "no_room": []}
        again = await box.delivered(2)
        assert [(event["id"], about["attempt"]) for event, about in again] == [(ids[0], 2), (ids[1], 2)]
        assert (await box.confirm(alice, *ids[:2], ids[3]))[1] is True
        ok = await box.confirm(alice, ids[2])
        assert ok[2]["ignored"] == [{"id": ids[2], "reason": "purged"}]
    assert await states(edge, alice, ids[2]) == {bob.node: "purged"}


async def test_requeued_rows_go_to_the_tail(edge: Edge, alice: Author, bob: Author) -> None:
    messages = [direct(alice, bob, str(number)) for number in range(3)]
    await send(edge, *messages)
    async with reading(edge, bob) as box:
        await box.delivered(3)
        await box.stream.send("REJECT", messages[0]["id"], "later")
        await box.next("OK")
    await operator(edge, "/requeue", {"node": bob.node, "ids": [messages[0]["id"]]})
    async with reading(edge, bob) as box:
        assert await box.bodies(3) == ["1", "2", "0"]


async def test_requeue_keeps_to_the_cap(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay", queue_max=2) as edge:
        first = [direct(alice, bob, "1"), direct(alice, bob, "2")]
        await send(edge, *first)
        async with reading(edge, bob) as box:
            await box.delivered(2)
            for message in first:
                await box.stream.send("REJECT", message["id"], "no")
                await box.next("OK")
        await send(edge, direct(alice, bob, "3"))
        answer = await operator(edge, "/requeue", {"node": bob.node})
        assert answer == {"requeued": [first[0]["id"]], "no_room": [first[1]["id"]]}


async def test_only_admins_are_operators_and_readers_see_their_own_queue(
    edge: Edge, alice: Author, bob: Author
) -> None:
    await send(edge, direct(alice, bob))
    token = await edge.token(bob)
    for path in ("", "/rows", f"/rows?node={alice.node}"):
        assert (await edge.get(f"/v1/meshes/main/queues{path}", token)).code == "right_missing"
    for path in ("/purge", "/requeue"):
        assert (await edge.post(f"/v1/meshes/main/queues{path}", {"node": bob.node}, token)).code == "right_missing"
    own = (await edge.get(f"/v1/meshes/main/queues/rows?node={bob.node}", token)).value["rows"]
    assert [row["sender"] for row in own] == [alice.node]


async def test_states_are_for_sender_recipient_and_admin(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    message = direct(alice, bob)
    await send(edge, message)
    for viewer in (alice, bob, edge.admin):
        assert await states(edge, viewer, message["id"]) == {bob.node: "queued"}
    reply = await edge.get(f"/v1/messages/{message['id']}", await edge.token(carol))
    assert (reply.status, reply.code) == (404, "message_unknown")
    assert (await edge.get(f"/v1/events/{message['id']}", await edge.token(edge.admin))).status == 404
    assert (await edge.get(f"/v1/messages/{'0' * 64}", await edge.token(alice))).code == "message_unknown"
    assert (await edge.get("/v1/messages/x", await edge.token(alice))).code == "id_invalid"


async def test_recipient_of_a_topic_sees_only_itself(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    await edge.post("/v1/meshes/main/topics", {"name": "news"}, await edge.token(alice))
    for author in (bob, carol):
        await edge.post("/v1/meshes/main/subscriptions", {"pattern": ">"}, await edge.token(author))
    message = post(alice, "news")
    await send(edge, message)
    assert await states(edge, bob, message["id"]) == {bob.node: "queued"}
    assert await states(edge, alice, message["id"]) == {bob.node: "queued", carol.node: "queued"}


async def test_rows_and_queues_come_in_pages(edge: Edge, alice: Author, bob: Author, carol: Author) -> None:
    await send(edge, *[direct(alice, reader, str(number)) for number in range(5) for reader in (bob, carol)])
    seen: list[str] = []
    after = ""
    while True:
        page = await operator(edge, f"/rows?limit=3{after}")
        seen += [row["id"] for row in page["rows"]]
        if page["next"] is None:
            break
        after = f"&after={page['next'].replace(' ', '%20')}"
    assert len(seen) == len(set(seen)) == 10
    first = await operator(edge, "?limit=1")
    second = await operator(edge, f"?limit=1&after={first['next']}")
    assert [each["queues"][0]["recipient"] for each in (first, second)] == sorted((bob.node, carol.node))


async def test_metrics_tell_depth_flight_and_parked(edge: Edge, alice: Author, bob: Author) -> None:
    messages = [direct(alice, bob, str(number)) for number in range(5)]
    await send(edge, *messages)
    async with reading(edge, bob, window=3) as box:
        await box.delivered(3)
        await box.stream.send("REJECT", messages[0]["id"], "no")
        await box.next("OK")
        await box.confirm(alice, messages[1]["id"])
        await box.delivered(2)

        async def shows_flight() -> bool:
            queue = next(each for each in (await operator(edge, ""))["queues"] if each["recipient"] == bob.node)
            return (queue["depth"], queue["in_flight"], queue["parked"]) == (3, 3, 1)

        await eventually(shows_flight)
        text = (await edge.get("/metrics", await edge.token(edge.admin))).body.decode()
    shown = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert shown["posthouse_relay_queued_messages"] == "3.0"
    assert shown["posthouse_relay_messages_in_flight"] == "3.0"
    assert shown["posthouse_relay_parked_messages"] == "1.0"
    assert float(shown["posthouse_relay_queue_oldest_seconds"]) > 0
    assert shown['posthouse_relay_deliveries_closed_total{state="confirmed"}'] == "1.0"
    assert shown["posthouse_relay_flush_seconds_count"] in ("0.0", "1.0")


async def test_metrics_show_the_deepest_queues_and_the_longest_waits_by_mesh_and_no_others(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    async with checked(tmp_path / "relay", clock) as edge:
        token = await edge.token(edge.admin)
        for number in range(12):
            assert (await edge.post("/v1/meshes", {"name": f"m{number}", "open": True}, token)).status == 201
            mesh = ("mesh", f"m{number}")
            await send(edge, *[direct(alice, bob, "x", None, mesh) for _ in range(number + 1)])
            clock.advance(10)
        text = (await edge.get("/metrics", await edge.token(edge.admin))).body.decode()
    depths = dict(re.findall(r'posthouse_relay_mesh_queued_messages{mesh="(\w+)"} (\S+)', text))
    assert depths == {f"m{number}": f"{number + 1}.0" for number in range(2, 12)}, "ten meshes, those with most"
    ages = dict(re.findall(r'posthouse_relay_mesh_queue_oldest_seconds{mesh="(\w+)"} (\S+)', text))
    assert ages == {f"m{number}": f"{120 - 10 * number}.0" for number in range(10)}, "ten meshes, the longest waits"
    assert "posthouse_relay_queued_messages 78.0" in text
