"""A host rotates its key under traffic: nothing is lost, agents keep their addresses, the other host says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from posthouse.client import Client, Pins
from posthouse.daemon import uplink
from posthouse.keys import keyfile
from posthouse.model.errors import PosthouseError, error
from tests.client.house import ADMIN, QUICK, House
from tests.daemon.hosts import Host, eventually, host_at, restart, running
from tests.daemon.test_kill import died, doomed


async def name_member(house: House, node: str, name: str) -> None:
    """Let the admin give a host a name."""
    async with Client(house.url, ADMIN, pins=Pins(None), options=QUICK) as admin:
        await admin.meshes.add_member("main", node, name)


@pytest.fixture
async def alice(house: House) -> AsyncIterator[Host]:
    async with host_at(house, "alice") as host:
        await name_member(house, host.node, "alice")
        yield host


@pytest.fixture
async def bob(house: House) -> AsyncIterator[Host]:
    async with host_at(house, "bob") as host:
        await name_member(house, host.node, "bob")
        yield host


async def rotate(host: Host) -> tuple[str, str]:
    """Rotate the key of a host; return its node ids before and after."""
    said = await host.post("/v1/key/rotate")
    assert said.status == 200, said.body
    return said["before"], said["node"]


async def test_rotation_under_traffic_loses_nothing_in_either_direction(alice: Host, bob: Host) -> None:
    async def talk(sender: Host, to: str, count: int) -> None:
        for number in range(count):
            request = partial(sender.send, to, f"{to} {number}", client_message_id=f"{to}-{number}")
            await eventually(request, lambda said: said.status in (200, 202))  # while its mesh opens again it refuses

    talking = [asyncio.create_task(talk(alice, "bob", 40)), asyncio.create_task(talk(bob, "alice", 40))]
    await bob.until_bodies(5)
    before, after = await rotate(alice)
    await asyncio.gather(*talking)
    assert before != after == alice.node
    assert sorted(await bob.until_bodies(40)) == sorted(f"bob {number}" for number in range(40))
    assert sorted(await alice.until_bodies(40)) == sorted(f"alice {number}" for number in range(40))
    await alice.until_status("bob-39", "done")
    await bob.until_status("alice-39", "done")


async def test_other_host_tells_its_user_that_the_key_has_changed(alice: Host, bob: Host) -> None:
    await bob.get("/v1/peers")
    before, after = await rotate(alice)
    await alice.connected()
    await bob.mesh.uplink.refresh()

    async def shown() -> object:
        peers = (await bob.get("/v1/peers"))["peers"]
        return [(peer["node"], peer["former_key"]) for peer in peers if peer["node"] not in (bob.node, ADMIN.node)]

    await eventually(shown, lambda seen: seen == [(after, before)])
    assert (await bob.send("alice", "to the new key")).status == 202
    assert "to the new key" in await alice.until_bodies(1)


async def test_agents_keep_their_addresses(alice: Host, bob: Host) -> None:
    claude = await alice.add_agent("claude")
    await alice.connected()
    await rotate(alice)
    await alice.connected()
    await bob.mesh.uplink.refresh()

    async def sent() -> int:
        return (await bob.send("claude@alice", "still there?", client_message_id="q")).status

    await eventually(sent, lambda status: status in (200, 202))
    assert await claude.until_bodies(1) == ["still there?"]


async def test_message_that_waited_in_the_outbox_is_signed_again(house: House, alice: Host, bob: Host) -> None:
    async def refuse(events: Sequence[object]) -> list[PosthouseError]:
        return [error("relay_unreachable", relay="", reason="interrupted")] * len(events)

    alice.mesh.drain._submit = refuse  # type: ignore[assignment]
    await alice.send("bob", "sealed with the old key", client_message_id="w")
    await alice.until_status("w", "pending")
    await rotate(alice)
    assert await bob.until_bodies(1) == ["sealed with the old key"]
    await alice.until_status("w", "done")


async def test_message_that_the_relay_had_already_is_not_delivered_twice(house: House, alice: Host, bob: Host) -> None:
    submit = alice.mesh.drain._submit

    async def lose_answer(events: list[object]) -> list[object]:
        answers = await submit(events)  # type: ignore[arg-type]
        assert answers
        await asyncio.Event().wait()  # the answer never comes
        return []

    alice.mesh.drain._submit = lose_answer  # type: ignore[assignment]
    await alice.send("bob", "once", client_message_id="o")
    assert await bob.until_bodies(1) == ["once"]
    await rotate(alice)
    await alice.until_status("o", "done")
    assert await bob.bodies() == ["once"]


async def test_second_rotation_and_a_restart_leave_all_old_mail_readable(alice: Host, bob: Host) -> None:
    await bob.send("alice", "first", client_message_id="1")
    await alice.until_bodies(1)
    await rotate(alice)
    await alice.connected()
    await rotate(alice)
    await restart(alice)
    await alice.connected()
    await bob.send("alice", "second", client_message_id="2")
    assert sorted(await alice.until_bodies(2)) == ["first", "second"]
    assert len(keyfile.load(alice.mesh.directory.key).former) == 2


@pytest.mark.parametrize("point", ["successor_stored", "relay_rotated", "key_replaced"])
async def test_daemon_killed_at_any_step_of_a_rotation_starts_with_a_working_key(house: House, point: str) -> None:
    async with doomed(house, point) as (host, process, node):
        await name_member(house, node, "phoenix")
        await _ask_for_rotation(host.settings.directory / "sock")
        await died(process)
        async with running(host):
            await eventually(_may_send(host), bool)
            assert (host.node == node) is (point == "successor_stored")
            before, after = await rotate(host)
            await host.connected()
            assert host.node == after != before
            assert (await host.send(ADMIN.node, "alive", client_message_id="c")).status == 202
            await host.until_status("c", "done")


async def test_host_whose_new_key_waits_for_approval_loses_nothing_and_says_why(
    house: House, alice: Host, bob: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "_AGAIN_S", 0.05)
    claude = await alice.add_agent("claude")
    await alice.connected()
    async with Client(house.url, ADMIN, pins=Pins(None), options=QUICK) as admin:
        await admin.keys.require_approval("main", True)
        await alice.mesh.uplink.refresh()  # it knows bob
        before, after = await rotate(alice)
        health = await eventually(lambda: alice.get("/v1/health"), lambda said: said["refusal"] is not None)
        assert (health["refusal"], health["admitted"], health["connected"]) == ("key_not_approved", False, True)
        [state] = health["meshes"]
        assert state["error"] == "key_not_approved" and "posthouse mesh rotations" in state["hint"]
        assert (await alice.send("bob", "sent while it waits", client_message_id="w")).status == 202
        assert (await bob.send("alice", "to the new key", client_message_id="n")).status == 202
        await alice.until_status("w", "pending")
        await bob.until_status("n", "done")
        await restart(alice)  # the new key is the key of this host
        assert alice.node == after
        [held] = (await admin.keys.held("main")).waiting
        assert (held.node, held.former, held.name) == (after, before, "alice")
        await admin.keys.approve("main", after)
        assert await bob.until_bodies(1) == ["sent while it waits"]
        assert await alice.until_bodies(1) == ["to the new key"]
        await alice.until_status("w", "done")
        await bob.mesh.uplink.refresh()
        request = partial(bob.send, "claude@alice", "and to its agent", client_message_id="c")
        await eventually(request, lambda said: said.status in (200, 202))
        assert await claude.until_bodies(1) == ["and to its agent"]


def _may_send(host: Host) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        node = host.daemon.meshes.nodes["main"]
        return node.is_open and node.uplink.may_send

    return look


async def _ask_for_rotation(socket: Path) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(socket))) as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post("http://localhost/v1/key/rotate", json={})
