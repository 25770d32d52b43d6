"""The bridge between mesh and bus: nothing echoes, loops stop by the budget that travels, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from posthouse.bus.bus import Bus
from posthouse.bus.results import Letter
from posthouse.daemon.send import Sending, SendRequest, SendResult
from posthouse.model.budget import MeshBudget
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import node_hex
from posthouse.model.profile import AgentProfile
from posthouse.model.reliability import Backpressure, RateLimit, Reliability
from tests.client.house import House
from tests.client.waiting import PATIENCE_S, until
from tests.daemon.hosts import Host, eventually, host_at, restart

FAR_FUTURE_MS = 4_000_000_000_000


@asynccontextmanager
async def bridged(house: House, name: str, **bus_options: Any) -> AsyncIterator[tuple[Host, Bus]]:
    """A daemon with a bridge, and an agent's bus on the same host."""
    folder = house.folder / f"{name}-bus"
    async with Bus(folder, **bus_options) as bus, host_at(house, name, bus_dir=folder) as host:
        yield host, bus


async def collect(bus: Bus, subject: str) -> list[Envelope]:
    """Serve an endpoint and gather what comes."""
    found: list[Envelope] = []

    async def take(envelope: Envelope) -> None:
        found.append(envelope)

    await bus.register_endpoint(subject)
    await bus.subscribe(subject, take)
    return found


async def bridge_states(host: Host) -> list[str]:
    rows = await host.mesh.inbox.store.pool.run(
        lambda db: list(db.execute("SELECT bridge FROM inbox ORDER BY position"))
    )
    return [str(state) for (state,) in rows]


async def test_a_direct_message_is_published_under_its_sender(house: House, alice: Host) -> None:
    async with bridged(house, "bob") as (bob, bus):
        hex_ = node_hex(alice.node)
        found = await collect(bus, f"mesh.main.in.dm.{hex_}")
        sent = await alice.send(bob.node, "hello", meta={"k": 1})
        await until(lambda: len(found) == 1)
        [envelope] = found
        assert envelope.from_ == f"mesh.main.member.{hex_}"
        assert envelope.reply_to == f"mesh.main.out.dm.{hex_}"
        assert envelope.payload["content"] == "hello"
        assert envelope.payload["platformData"]["messageId"] == sent["message_id"]
        assert envelope.payload["platformData"]["meta"] == {"k": 1}
        assert envelope.budget.max_hops == 20
        assert await eventually(lambda: bridge_states(bob), lambda states: states == ["published"])


async def test_mail_to_an_agent_goes_to_its_endpoint_and_the_answer_back_to_the_agent_that_wrote(house: House) -> None:
    async with host_at(house, "alice") as alice, bridged(house, "bob") as (bob, bus):
        ann, ben = await alice.add_agent("ann"), await bob.add_agent("ben")
        found, others = await collect(bus, "agents.ben"), await collect(bus, "mesh.main.in.>")
        hex_ = node_hex(alice.node)
        alice.mesh.uplink._fetched[bob.node] = (AgentProfile("ben"),)
        bob.mesh.uplink._fetched[alice.node] = (AgentProfile("ann"),)
        assert (await ann.send(f"ben@{bob.node}", "hello")).status == 202
        await until(lambda: len(found) == 1)
        [envelope] = found
        assert envelope.from_ == f"mesh.main.member.{hex_}.ann"
        assert envelope.reply_to == f"mesh.main.out.dm.{hex_}.ann"
        assert envelope.payload["platformData"]["fromAgent"] == "ann"
        await bus.publish(envelope.reply_to, {"content": "hi"}, from_="agents.ben")
        [item] = (await ann.get("/v1/inbox", wait_s=20))["items"]
        assert (item["body"], item["from_agent"], item["to_agent"]) == ("hi", "ben", "ann")
        assert others == []
        assert [each["body"] for each in (await ben.get("/v1/inbox"))["items"]] == ["hello"]


async def test_mail_to_an_agent_without_an_endpoint_stays_in_its_inbox(house: House, alice: Host) -> None:
    async with bridged(house, "bob") as (bob, bus):
        ben = await bob.add_agent("ben")
        others = await collect(bus, "mesh.main.in.>")
        alice.mesh.uplink._fetched[bob.node] = (AgentProfile("ben"),)
        await alice.send(f"ben@{bob.node}", "hello")
        [item] = (await ben.get("/v1/inbox", wait_s=20))["items"]
        assert item["body"] == "hello"
        assert await eventually(lambda: bridge_states(bob), lambda states: states == ["unmatched"])
        assert others == []


async def test_a_topic_is_published_under_its_name(house: House, alice: Host) -> None:
    async with bridged(house, "bob") as (bob, bus):
        found = await collect(bus, "mesh.main.in.topic.>")
        await alice.post("/v1/topic/create", topic="news.today")
        await bob.post("/v1/topic/subscribe", topic="news.*")
        await alice.send("#news.today", "extra")
        await until(lambda: len(found) == 1)
        assert found[0].subject == "mesh.main.in.topic.news.today"
        assert found[0].payload["channelName"] == "news.today"


async def test_mail_without_an_endpoint_stays_in_the_inbox_alone(house: House, alice: Host) -> None:
    async with bridged(house, "bob") as (bob, bus):
        await alice.send(bob.node, "hello")
        assert await bob.until_bodies(1) == ["hello"]
        assert await eventually(lambda: bridge_states(bob), lambda states: states == ["unmatched"])
        assert await bus.dead_letters() == []


async def test_an_envelope_published_to_out_arrives_on_the_other_host(house: House, alice: Host) -> None:
    async with bridged(house, "bob") as (bob, bus):
        result = await bus.publish(
            f"mesh.main.out.dm.{node_hex(alice.node)}",
            {"content": "from the bus", "usage": {"model": "m", "inputTokens": 1, "outputTokens": 2, "costUsd": 0.5}},
            from_="agents.writer",
        )
        assert result.delivered_to == 1
        assert await alice.until_bodies(1) == ["from the bus"]
        [item] = (await alice.get("/v1/inbox"))["items"]
        assert item["sender"] == bob.node
        assert item["client_message_id"] == f"bus-{result.message_id}"
        assert item["meta"]["usage"] == {"model": "m", "input_tokens": 1, "output_tokens": 2, "cost_usd": 0.5}


async def test_a_payload_that_is_no_standard_one_leaves_as_json(house: House, alice: Host) -> None:
    async with bridged(house, "bob") as (_bob, bus):
        await bus.publish(f"mesh.main.out.dm.{node_hex(alice.node)}", [1, {"a": None}], from_="agents.writer")
        assert [msgspec.json.decode(body) for body in await alice.until_bodies(1)] == [[1, {"a": None}]]


async def test_nothing_but_out_goes_to_the_outbox(house: House, alice: Host) -> None:
    async with bridged(house, "bob") as (bob, bus):
        found = await collect(bus, ">")
        for subject in ("mesh.main.in.dm.x", "mesh.other.out.dm.x", "mesh.main.member.x", "team.alpha"):
            await bus.publish(subject, {"content": "x"}, from_="agents.writer")
        await alice.send(bob.node, "inbound")
        await until(lambda: len(found) == 5)
        assert (await bob.get("/v1/outbox"))["items"] == []


@pytest.mark.parametrize("rest", ["dm.abc", "topic.unknown", "queue.x", "dm." + "0" * 64])
async def test_an_envelope_that_cannot_be_sent_becomes_a_dead_letter(house: House, rest: str) -> None:
    async with bridged(house, "bob") as (bob, bus):
        await bus.publish(f"mesh.main.out.{rest}", {"content": "x"}, from_="agents.writer")
        letters = await eventually(bus.dead_letters, lambda found: len(found) == 1)
        assert letters[0].subject == f"mesh.main.out.{rest}"
        assert (await bob.get("/v1/outbox"))["items"] == []


async def test_the_users_time_limit_for_handlers_does_not_cut_the_retries_of_the_bridge(
    house: House, alice: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_BUS_HANDLER_TIMEOUT_S", "0.05")
    monkeypatch.setattr("posthouse.daemon.bridge._OUTGOING_RETRY_S", 0.3)
    send, refused = Sending.send, list[SendRequest]()

    async def busy_once(sending: Sending, request: SendRequest, **options: Any) -> SendResult:
        if not refused:
            refused.append(request)
            raise error("store_busy", items=0, bytes=0)
        return await send(sending, request, **options)

    monkeypatch.setattr(Sending, "send", busy_once)
    async with bridged(house, "bob") as (_bob, bus):
        await bus.publish(f"mesh.main.out.dm.{node_hex(alice.node)}", {"content": "late"}, from_="agents.writer")
        assert await eventually(alice.bodies, lambda bodies: bodies == ["late"])
        assert await bus.dead_letters() == []
    assert len(refused) == 1


async def test_message_from_the_bus_waits_while_the_disk_is_full_and_over_a_restart(
    house: House, alice: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posthouse.daemon.bridge._OUTGOING_RETRY_S", 0.01)
    send, refused, is_full = Sending.send, list[SendRequest](), True

    async def send_unless_full(sending: Sending, request: SendRequest, *given: Any, **options: Any) -> SendResult:
        if is_full:
            refused.append(request)
            raise error("store_full", path="outbox.db", reason="database or disk is full")
        return await send(sending, request, *given, **options)

    monkeypatch.setattr(Sending, "send", send_unless_full)
    async with bridged(house, "bob") as (bob, bus):
        await bus.publish(f"mesh.main.out.dm.{node_hex(alice.node)}", {"content": "late"}, from_="agents.writer")
        await until(lambda: len(refused) > 20)
        async with asyncio.timeout(PATIENCE_S):
            await restart(bob)
        seen = len(refused)
        await until(lambda: len(refused) > seen)
        is_full = False
        assert await eventually(alice.bodies, lambda bodies: bodies == ["late"])
        assert await bus.dead_letters() == []


async def test_the_bridge_is_exempt_from_the_rate_limit(house: House, alice: Host) -> None:
    reliability = Reliability(rate_limit=RateLimit(max_per_window=5))
    async with bridged(house, "bob", reliability=reliability) as (bob, bus):
        (bob.mesh.settings.bus_dir or Path()).joinpath("config.json").write_text(
            '{"reliability": {"rateLimit": {"enabled": true, "windowSecs": 60, "maxPerWindow": 5}}}'
        )
        found = await collect(bus, "mesh.main.in.dm.>")
        for number in range(30):
            await alice.send(bob.node, f"m{number}")
        await until(lambda: len(found) == 30)
        assert [each.payload["content"] for each in found] == [f"m{number}" for number in range(30)]


async def test_mail_for_a_full_mailbox_is_published_when_there_is_room(house: House, alice: Host) -> None:
    reliability = Reliability(backpressure=Backpressure(max_mailbox_size=2))
    folder = house.folder / "bob-bus"
    async with Bus(folder, reliability=reliability) as bus:
        (folder / "config.json").write_text('{"reliability": {"backpressure": {"maxMailboxSize": 2}}}')
        subject = f"mesh.main.in.dm.{node_hex(alice.node)}"
        await bus.register_endpoint(subject)
        async with host_at(house, "bob", bus_dir=folder) as bob:
            for number in range(4):
                await alice.send(bob.node, f"m{number}")
            await bob.until_bodies(4)
            waiting = ["published", "published", "waiting", "waiting"]
            assert await eventually(lambda: bridge_states(bob), lambda states: states == waiting)
            for envelope in await bus.read_inbox(subject):
                assert await bus.ack(subject, envelope.id) == "acked"
            assert await eventually(lambda: bridge_states(bob), lambda states: states == ["published"] * 4)
            rest = [envelope.payload["content"] for envelope in await bus.read_inbox(subject)]
            assert rest == ["m2", "m3"]


async def test_mail_that_came_before_a_restart_is_published_after_it(house: House, alice: Host) -> None:
    async with bridged(house, "bob") as (bob, bus):
        found = await collect(bus, "mesh.main.in.dm.>")
        await alice.send(bob.node, "one")
        await until(lambda: len(found) == 1)
        await bob.mesh.inbox.store.writer.run(
            lambda tx: tx.db.execute("UPDATE inbox SET bridge = 'waiting'").fetchall()
        )
        await bob.down()
        await bob.up()
        await until(lambda: len(found) == 2)
        assert await eventually(lambda: bridge_states(bob), lambda states: states == ["published"])


# budgets


async def answering(bus: Bus, subject: str) -> list[Envelope]:
    """An agent that answers whatever it gets, for ever."""
    heard: list[Envelope] = []

    async def answer(envelope: Envelope) -> None:
        heard.append(envelope)
        assert envelope.reply_to is not None
        await bus.publish(envelope.reply_to, {"content": "and again"}, from_="agents.echo")

    await bus.register_endpoint(subject)
    await bus.subscribe(subject, answer)
    return heard


async def test_two_agents_that_answer_each_other_over_the_mesh_stop_by_the_travelling_budget(house: House) -> None:
    wide: dict[str, Any] = {"max_hops": 1_000, "default_call_budget": 1_000}
    async with bridged(house, "alice", **wide) as (alice, first), bridged(house, "bob", **wide) as (bob, second):
        heard_first = await answering(first, "mesh.main.in.dm.>")
        heard_second = await answering(second, "mesh.main.in.dm.>")
        await first.publish(f"mesh.main.out.dm.{node_hex(bob.node)}", {"content": "begin"}, from_="agents.echo")

        async def letters() -> list[Letter]:
            return await first.dead_letters() + await second.dead_letters()

        [letter] = await eventually(letters, lambda found: len(found) > 0)
        assert letter.reason == "max hops exceeded (20/20)"
        # a question costs a hop on the way out and one on the way in, its answer costs none
        assert (len(heard_first), len(heard_second)) == (10, 10)
        assert all(envelope.in_reply_to is None for envelope in heard_second)
        assert all(envelope.in_reply_to is not None for envelope in heard_first)
        assert (await alice.send(bob.node, "something new")).status == 202


async def test_return_over_the_mesh_names_the_message_that_it_answers_on_both_sides(house: House) -> None:
    async with bridged(house, "alice") as (_alice, first), bridged(house, "bob") as (bob, second):
        answers = await collect(first, "mesh.main.in.dm.>")
        asked = await answering(second, "mesh.main.in.dm.>")
        sent = await first.publish(f"mesh.main.out.dm.{node_hex(bob.node)}", {"content": "?"}, from_="agents.asker")
        await until(lambda: len(answers) == 1)
        [question], [answer] = asked, answers
        assert answer.in_reply_to == sent.message_id
        assert answer.payload["platformData"]["replyToId"] == question.payload["platformData"]["messageId"]
        assert answer.budget.hop_count == question.budget.hop_count == 2


async def test_return_to_a_member_without_a_bus_carries_is_return_in_its_budget(house: House, alice: Host) -> None:
    async with bridged(house, "bob") as (bob, bus):
        await answering(bus, "mesh.main.in.dm.>")
        sent = await alice.send(bob.node, "question")
        await alice.until_bodies(1)
        [item] = (await alice.get("/v1/inbox"))["items"]
        assert item["reply_to_id"] == sent["message_id"]
        budget = await received_budget(alice, item)
        assert (budget.hop_count, budget.is_return) == (1, True)


async def received_budget(host: Host, item: dict[str, Any]) -> MeshBudget:
    """Return the budget with which a message came."""
    found = await host.mesh.inbox.find_cause(item["message_id"])
    assert found is not None and found[1] is not None
    return found[1]


async def test_two_members_that_reply_to_each_other_end_after_forty_messages(alice: Host, bob: Host) -> None:
    hosts = (alice, bob)
    previous: str | None = None
    for turn in range(60):
        sender, reader = hosts[turn % 2], hosts[(turn + 1) % 2]
        more = {} if previous is None else {"reply_to_id": previous}
        sent = await sender.send(reader.node, f"turn {turn}", **more)
        if sent.status != 202:
            break
        [item] = (await reader.get("/v1/inbox", wait_s=10, limit=1, unread="true"))["items"]
        assert item["message_id"] == sent["message_id"]
        await reader.post("/v1/inbox/seen", ids=[item["id"]])
        previous = item["message_id"]
    assert turn == 40  # twenty hops, each with an answer that costs none
    assert sent["error"] == "budget_exceeded"
    assert "max hops exceeded (20/20)" in sent["detail"]


async def test_reply_in_the_topic_of_a_message_is_a_return(alice: Host, bob: Host) -> None:
    await alice.post("/v1/topic/create", topic="news")
    await bob.post("/v1/topic/subscribe", topic="news")
    await alice.post("/v1/topic/subscribe", topic="news")
    sent = await alice.send("#news", "who is there?")
    await bob.until_bodies(1)
    await bob.send("#news", "me", reply_to_id=sent["message_id"])
    await alice.until_bodies(1)
    [item] = (await alice.get("/v1/inbox"))["items"]
    assert (await received_budget(alice, item)).is_return


async def test_an_expired_budget_is_not_published(house: House) -> None:
    async with bridged(house, "bob") as (bob, bus):
        found = await collect(bus, "mesh.main.in.dm.>")
        sender = house.client()
        for name, ttl in (("expired", 1), ("alive", FAR_FUTURE_MS)):
            budget = MeshBudget(hop_count=0, max_hops=50, call_budget_remaining=100, ttl=ttl)
            await sender.send(bob.node, name, budget=budget)
        await until(lambda: len(found) == 1)
        assert found[0].payload["content"] == "alive"
        assert await eventually(lambda: bridge_states(bob), lambda states: states == ["refused", "published"])
        assert await bob.bodies() == ["expired", "alive"]


async def test_a_second_owner_of_the_bridge_is_refused(house: House) -> None:
    folder = house.folder / "bob-bus"
    async with Bus(folder) as bus:
        await bus.register_endpoint("mesh.main.out.>", owner="somebody")
        with pytest.raises(PosthouseError) as refused:
            async with host_at(house, "bob", bus_dir=folder):
                pass
        assert refused.value.code == "endpoint_owned"
