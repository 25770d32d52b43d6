"""Requests through daemons: between agents of two hosts, on one host, over the bus, and after their deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from posthouse.bus.bus import Bus
from posthouse.client.daemon import AsyncDaemonClient, DaemonAddress
from posthouse.daemon import registrar
from posthouse.daemon.agents.processes import ProcessRef
from posthouse.daemon.agents.registry import AgentFields
from posthouse.model.clock import FakeClock, format_utc, system_clock
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from posthouse.model.message_api import Answer
from posthouse.model.node import node_hex
from tests.client.house import ADMIN, House
from tests.daemon.hosts import Host, eventually, host_at

FAR_S = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar, "PUBLISH_EVERY_S", 0.05)


@asynccontextmanager
async def client_at(host: Host, agent: str = "") -> AsyncIterator[AsyncDaemonClient]:
    client = AsyncDaemonClient(DaemonAddress(host.settings.directory), FAR_S, agent)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def bridged(house: House, name: str) -> AsyncIterator[tuple[Host, Bus]]:
    """A daemon with a bridge, and an agent's bus on the same host."""
    folder = house.folder / f"{name}-bus"
    async with Bus(folder) as bus, host_at(house, name, bus_dir=folder) as host:
        yield host, bus


@asynccontextmanager
async def members(house: House, *hosts: Host) -> AsyncIterator[None]:
    """Give hosts their member names, in order: laptop, build."""
    async with house.client(ADMIN) as admin:
        for host, name in zip(hosts, ("laptop", "build"), strict=False):
            await admin.meshes.add_member("main", host.node, name, "member")
        for host in hosts:
            await host.mesh.uplink.refresh()
        yield


async def knows(host: Host, agent: str) -> None:
    """Wait until a host sees an agent of the other one, and that its host is connected."""

    async def look() -> list[str]:
        peers = (await host.get("/v1/peers"))["peers"]
        return [each["name"] for peer in peers if peer["online"] for each in peer["agents"]]

    await eventually(look, lambda names: agent in names)


async def next_mail(program: Host) -> Any:
    items = (await program.get("/v1/inbox", unread="true", wait_s=FAR_S))["items"]
    assert items, "no mail came"
    return items[0]


async def test_a_request_to_an_agent_of_another_host_returns_its_reply(house: House) -> None:
    async with host_at(house, "l") as laptop, host_at(house, "b") as build, members(house, laptop, build):
        await laptop.add_agent("ann")
        ben = await build.add_agent("ben")
        await knows(laptop, "ben")
        parts: list[Answer] = []
        async with client_at(laptop, "ann") as ann, asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(ann.request("ben@build", "does it build?", FAR_S, on_partial=parts.append))
            asked = await next_mail(ben)
            assert asked["request"] == "now" and asked["valid_until"] is not None
            await ben.send("ann@laptop", "compiling", reply_to_id=asked["message_id"], answer="partial")
            await ben.send("ann@laptop", "it does", reply_to_id=asked["message_id"])
            answer = await asking
            assert (answer.body, answer.from_agent, [each.body for each in parts]) == ("it does", "ben", ["compiling"])
            assert list(await ann.inbox(unread=True)) == []  # what the call returned is no mail any more


async def test_no_responder_is_raised_at_once_for_a_host_that_is_not_connected(house: House) -> None:
    async with host_at(house, "l") as laptop:
        async with host_at(house, "b") as build, members(house, laptop, build):
            pass
        await eventually(
            lambda: laptop.get("/v1/peers"),
            lambda said: not any(peer["online"] for peer in said["peers"] if peer["name"] == "build"),
        )
        async with client_at(laptop) as client:
            with pytest.raises(PosthouseError) as failed:
                await client.request("build", "are you there?", FAR_S)
            assert failed.value.code == "no_responder"
        assert (await laptop.get("/v1/outbox"))["items"] == []


async def test_an_agent_whose_program_has_ended_answers_no_responder_and_a_paused_one_busy(house: House) -> None:
    async with host_at(house, "l") as laptop, host_at(house, "b") as build, members(house, laptop, build):
        await build.daemon.context.agents.register("gone", AgentFields(), ProcessRef(2**22 + 1, "1"))
        await build.add_agent("tired")
        until = format_utc(system_clock().wall_ns() + 3_600_000_000_000)
        paused = await build.post("/v1/agents/pause", names=["tired"], until=until, reason="usage limit")
        assert paused.status == 200, paused.body
        await knows(laptop, "gone")
        await knows(laptop, "tired")
        async with client_at(laptop) as client:
            with pytest.raises(PosthouseError) as gone:
                await client.request("gone@build", "are you there?", FAR_S)
            with pytest.raises(PosthouseError) as tired:
                await client.request("tired@build", "are you there?", FAR_S)
        assert (gone.value.code, "does not run" in gone.value.fields["reason"]) == ("no_responder", True)
        assert (tired.value.code, "usage limit" in tired.value.fields["reason"]) == ("responder_busy", True)


async def test_agents_of_one_host_ask_each_other_without_the_relay(house: House) -> None:
    async with host_at(house, "l") as laptop:
        await laptop.add_agent("ann")
        ben = await laptop.add_agent("ben")
        await house.down()
        async with client_at(laptop, "ann") as ann, asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(ann.request("ben", "are you there?", FAR_S))
            asked = await next_mail(ben)
            await ben.send("ann", "yes", reply_to_id=asked["message_id"])
            assert (await asking).body == "yes"


async def test_a_request_that_is_unread_at_its_deadline_is_no_work_any_more(house: House) -> None:
    clock = FakeClock(system_clock().wall_ns())
    async with host_at(house, "l", clock=clock) as laptop:
        ben = await laptop.add_agent("ben")
        until = format_utc(clock.wall_ns() + 60_000_000_000)
        sent = await laptop.send("ben", "soon", request="queue", valid_until=until)
        assert sent.status == 202, sent.body
        assert (await next_mail(ben))["body"] == "soon"
        clock.advance(61)
        assert (await ben.get("/v1/inbox", unread="true"))["items"] == []
        [item] = (await ben.get("/v1/inbox"))["items"]
        assert (item["is_stale"], item["seen_at"], item["body"]) == (True, None, None)
        assert await laptop.mesh.inbox.unread_count("ben") == 0


async def test_a_request_without_a_deadline_and_an_answer_without_a_request_are_refused(house: House) -> None:
    async with host_at(house, "l") as laptop:
        await laptop.add_agent("ben")
        assert (await laptop.send("ben", "soon", request="now"))["error"] == "request_malformed"
        assert (await laptop.send("ben", "yes", answer="final"))["error"] == "value_invalid"
        sent = await laptop.send("ben", "plain")
        assert (await laptop.get(f"/v1/answers/{sent['message_id']}"))["error"] == "request_malformed"


async def serve(bus: Bus, subject: str, handler: Any) -> None:
    await bus.register_endpoint(subject)
    await bus.subscribe(subject, handler)


async def test_bus_request_reaches_an_agent_on_another_host_and_gets_its_replies(house: House) -> None:
    async with (
        bridged(house, "l") as (laptop, here),
        bridged(house, "b") as (build, there),
        members(house, laptop, build),
    ):
        await build.add_agent("ben")
        await knows(laptop, "ben")

        async def reply(question: Envelope) -> None:
            assert question.reply_to is not None
            await there.publish(f"{question.reply_to}.partial", {"content": "compiling"}, from_="agents.ben")
            await there.publish(question.reply_to, {"content": "it does"}, from_="agents.ben")

        await serve(there, "agents.ben", reply)
        parts: list[Envelope] = []
        answer = await here.request(
            f"mesh.main.out.dm.{node_hex(build.node)}.ben",
            {"content": "does it build?"},
            from_="agents.ann",
            timeout_s=FAR_S,
            on_partial=parts.append,
        )
        assert answer.payload["content"] == "it does"
        assert [each.payload["content"] for each in parts] == ["compiling"]
        assert (await laptop.get("/v1/inbox", unread="true"))["items"] == []


async def test_bus_request_to_another_host_raises_why_its_handler_failed(house: House) -> None:
    async with (
        bridged(house, "l") as (laptop, here),
        bridged(house, "b") as (build, there),
        members(house, laptop, build),
    ):
        await build.add_agent("ben")
        await knows(laptop, "ben")

        async def fail(_question: Envelope) -> None:
            raise RuntimeError("the compiler is gone")

        await serve(there, "agents.ben", fail)
        with pytest.raises(PosthouseError) as failed:
            await here.request(
                f"mesh.main.out.dm.{node_hex(build.node)}.ben",
                {"content": "?"},
                from_="agents.ann",
                timeout_s=FAR_S,
            )
        assert failed.value.code == "request_failed"
        assert "the compiler is gone" in failed.value.fields["reason"]


async def test_bus_request_to_a_host_that_is_not_connected_raises_no_responder(house: House) -> None:
    async with bridged(house, "l") as (laptop, here):
        async with host_at(house, "b") as build, members(house, laptop, build):
            node = build.node
        await eventually(
            lambda: laptop.get("/v1/peers"),
            lambda said: not any(peer["online"] for peer in said["peers"] if peer["name"] == "build"),
        )
        with pytest.raises(PosthouseError) as failed:
            await here.request(
                f"mesh.main.out.dm.{node_hex(node)}", {"content": "?"}, from_="agents.ann", timeout_s=FAR_S
            )
        assert failed.value.code == "no_responder"
