"""Agents of two hosts at one relay: addresses, refusals, topics, profiles, locks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.daemon import own_posts, registrar
from posthouse.relay.messages.settings import DeliverySettings, message_features
from tests.client.house import ADMIN, House, open_house
from tests.daemon.hosts import Host, eventually, host_at


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar, "PUBLISH_EVERY_S", 0.05)


@pytest.fixture
async def hosts(house: House) -> AsyncIterator[tuple[Host, Host]]:
    """Two hosts, members `laptop` and `build`."""
    async with host_at(house, "l") as laptop, host_at(house, "b") as build, house.client(ADMIN) as admin:
        await admin.meshes.add_member("main", laptop.node, "laptop", "member")
        await admin.meshes.add_member("main", build.node, "build", "member")
        yield laptop, build


async def items(program: Host, **params: Any) -> list[Any]:
    found: list[Any] = (await program.get("/v1/inbox", order="oldest", **params))["items"]
    return found


async def bodies(program: Host) -> list[str]:
    return [item["body"] for item in await items(program)]


async def until(program: Host, wanted: list[str]) -> None:
    await eventually(lambda: bodies(program), lambda seen: seen == wanted)


async def listed(host: Host, name: str) -> list[str]:
    """Return the agents that a host sees on a member."""
    peers = {peer["name"]: peer for peer in (await host.get("/v1/peers"))["peers"]}
    return [agent["name"] for agent in peers.get(name, {"agents": []})["agents"]]


async def test_mail_reaches_the_named_agent_of_another_host_and_the_answer_comes_back(
    hosts: tuple[Host, Host],
) -> None:
    laptop, build = hosts
    claude, tester = await laptop.add_agent("claude"), await build.add_agent("tester", capabilities=["test"])
    await eventually(lambda: listed(laptop, "build"), lambda seen: seen == ["tester"])
    sent = await claude.send("tester@build", "run the tests")
    assert sent.status == 202, sent.body
    await until(tester, ["run the tests"])
    [item] = await items(tester)
    assert (item["from_agent"], item["sender_name"], item["to_agent"]) == ("claude", "laptop", "tester")
    await tester.send("claude@laptop", "green", reply_to_id=item["message_id"])
    await until(claude, ["green"])
    assert await bodies(laptop) == await bodies(build) == []


async def test_a_plain_name_means_the_own_agent_then_the_member_then_the_one_agent_of_the_mesh(
    hosts: tuple[Host, Host],
) -> None:
    laptop, build = hosts
    await build.add_agent("tester")
    await build.add_agent("claude")
    claude = await laptop.add_agent("claude")
    await eventually(lambda: listed(laptop, "build"), lambda seen: seen == ["claude", "tester"])
    await laptop.send("claude", "own")
    await laptop.send("tester", "theirs")
    await laptop.send("build", "host")
    await until(claude, ["own"])
    await until(build.acting_as("tester"), ["theirs"])
    await until(build, ["host"])
    assert await bodies(build.acting_as("claude")) == []


async def test_an_ambiguous_name_lists_the_candidates(house: House, hosts: tuple[Host, Host]) -> None:
    laptop, build = hosts
    async with host_at(house, "c") as third:
        await build.add_agent("tester")
        await third.add_agent("tester")
        address = f"tester@{third.node[8:16]}"  # it has no name: a short key, not 64 digits
        await eventually(lambda: laptop.send("tester", "x"), lambda said: said.status == 409)
        said = await laptop.send("tester", "x")
        assert said["error"] == "recipient_ambiguous"
        assert "tester@build" in said["detail"]
        assert address in said["detail"]
        assert (await laptop.send("tester@build", "x")).status == 202
        assert third.node not in said["detail"]
        assert (await laptop.send(address, "x")).status == 202, "what is shown can be typed"


async def test_an_unknown_agent_of_a_known_host_is_refused_with_near_misses(hosts: tuple[Host, Host]) -> None:
    laptop, build = hosts
    without = await laptop.send("claude@build", "x")
    assert (without.status, without["error"]) == (404, "recipient_agent_unknown")
    assert "build itself" in without["hint"]
    await build.add_agent("tester")
    await eventually(lambda: listed(laptop, "build"), lambda seen: seen == ["tester"])
    wrong = await laptop.send("testre@build", "x")
    assert (wrong.status, wrong["error"]) == (404, "recipient_agent_unknown")
    assert "tester@build" in wrong["hint"]
    plain = await laptop.send("testre", "x")
    assert (plain.status, "Did you mean tester@build?" in plain["hint"]) == (404, True)
    host = await laptop.send("tester@biuld", "x")
    assert (host.status, host["error"]) == (404, "member_name_unknown")
    assert "tester@build" in host["hint"]
    await build.post("/v1/agents/retire", name="tester", reason="ask ann")
    await eventually(lambda: listed(laptop, "build"), lambda seen: seen == [])
    retired = await laptop.send("tester@build", "x")
    assert (retired.status, retired["error"]) == (409, "agent_retired")
    assert "ask ann" in retired["detail"]
    assert (await laptop.get("/v1/outbox"))["items"] == []


async def test_mail_queued_for_an_agent_that_is_gone_is_rejected_with_the_reason(hosts: tuple[Host, Host]) -> None:
    laptop, build = hosts
    await build.add_agent("tester")
    await eventually(lambda: listed(laptop, "build"), lambda seen: seen == ["tester"])
    build.daemon.agents._agents = {}  # the list of the sender is older than the host's own
    sent = await laptop.send("tester@build", "x")
    assert sent.status == 202

    async def state() -> Any:
        relay = (await laptop.get(f"/v1/messages/{sent['message_id']}"))["relay"]
        return relay and relay["deliveries"][0]

    found = await eventually(state, lambda seen: bool(seen) and seen["state"] == "rejected")
    assert found["reason"] == "agent_unknown"
    assert await bodies(build) == []


async def test_topic_posts_reach_every_agent_that_follows_on_either_host_once(hosts: tuple[Host, Host]) -> None:
    laptop, build = hosts
    ann, ben = await laptop.add_agent("ann"), await laptop.add_agent("ben")
    cat = await build.add_agent("cat")
    await laptop.post("/v1/topic/create", topic="builds.main")
    for program in (ann, ben, cat):
        assert (await program.post("/v1/topic/subscribe", topic="builds.>")).status == 200
    await ann.send("#builds.main", "green")
    await until(ben, ["green"])
    await until(cat, ["green"])
    await cat.send("#builds.main", "red")
    await until(ann, ["red"])
    await until(ben, ["green", "red"])
    assert await bodies(laptop) == await bodies(build) == []
    assert (await ben.post("/v1/topic/unsubscribe", topic="builds.>")).status == 200
    assert (await ann.get("/v1/topic/list"))["subscriptions"] == ["builds.>"]
    assert (await ben.get("/v1/topic/list"))["subscriptions"] == []
    await cat.send("#builds.main", "blue")
    await until(ann, ["red", "blue"])
    assert await bodies(ben) == ["green", "red"]


async def test_own_posts_and_posts_of_others_are_in_the_order_of_the_relay(hosts: tuple[Host, Host]) -> None:
    laptop, build = hosts
    ann, ben = await laptop.add_agent("ann"), await laptop.add_agent("ben")
    await laptop.post("/v1/topic/create", topic="builds")
    await ben.post("/v1/topic/subscribe", topic="builds")
    for number in range(10):
        program = ann if number % 2 else build
        await program.send("#builds", f"m{number}", client_message_id=f"c{number}")
        await program.until_status(f"c{number}", "done")
    await until(ben, [f"m{number}" for number in range(10)])


@pytest.fixture
def no_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let own posts wait for nothing but what has arrived."""
    monkeypatch.setattr(own_posts, "QUIET_S", 0)


async def test_an_own_post_waits_while_an_earlier_delivery_is_being_stored(
    no_quiet: None, hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop, build = hosts
    ann, ben = await laptop.add_agent("ann"), await laptop.add_agent("ben")
    await laptop.post("/v1/topic/create", topic="builds")
    await ben.post("/v1/topic/subscribe", topic="builds")
    mailroom, has_arrived, may_continue = laptop.mesh.uplink._mailroom, asyncio.Event(), asyncio.Event()
    find = mailroom.recipients

    async def find_late(*args: Any) -> Any:
        has_arrived.set()
        await may_continue.wait()
        return await find(*args)

    monkeypatch.setattr(mailroom, "recipients", find_late)
    await build.send("#builds", "first", client_message_id="c1")
    async with asyncio.timeout(60):
        await has_arrived.wait()
    await ann.send("#builds", "second", client_message_id="c2")
    await ann.until_status("c2", "done")
    for _ in range(20):  # requests in whose time it could overtake the first
        assert await bodies(ben) == []
    may_continue.set()
    await until(ben, ["first", "second"])


async def test_a_subscription_from_before_there_were_agents_belongs_to_the_default_inbox(
    house: House, hosts: tuple[Host, Host]
) -> None:
    laptop, build = hosts
    await build.post("/v1/topic/create", topic="news")
    await laptop.mesh.uplink.client.meshes.subscribe("main", "news")
    await laptop.add_agent("ann")
    await build.send("#news", "hello")
    await until(laptop, ["hello"])
    assert await bodies(laptop.acting_as("ann")) == []


async def test_an_agent_changes_its_own_profile_and_others_see_it(hosts: tuple[Host, Host]) -> None:
    laptop, build = hosts
    tester = await build.add_agent("tester")
    await build.post("/v1/profile", summary="a build server")
    assert (await tester.post("/v1/profile", summary="tests", status="working", capabilities=["test"])).status == 200

    async def seen() -> Any:
        peers = {peer["name"]: peer for peer in (await laptop.get("/v1/peers"))["peers"]}
        return next(iter(peers["build"]["agents"]), {})

    found = await eventually(seen, lambda agent: agent.get("summary") == "tests")
    assert (found["status"], found["capabilities"], found["online"]) == ("working", ["test"], False)
    assert "project" not in found
    refused = await tester.post("/v1/profile", avatar="x")
    assert (refused.status, refused["error"]) == (400, "body_invalid")


async def test_locks_of_two_agents_of_one_host_exclude_each_other(hosts: tuple[Host, Host]) -> None:
    laptop, _build = hosts
    ann, ben = await laptop.add_agent("ann"), await laptop.add_agent("ben")
    granted = await ann.post("/v1/locks/acquire", resource="deploy", lease_ms=60_000)
    assert granted.status == 200, granted.body
    assert (await ben.post("/v1/locks/acquire", resource="deploy", lease_ms=60_000)).status == 409
    token = granted["token"]
    assert (await ben.post("/v1/locks/release", resource="deploy", token=token)).status == 409
    assert (await ann.post("/v1/locks/release", resource="deploy", token=token)).status == 200


async def test_a_post_given_again_after_a_crash_is_still_one_message(hosts: tuple[Host, Host]) -> None:
    laptop, _build = hosts
    ann, ben = await laptop.add_agent("ann"), await laptop.add_agent("ben")
    await laptop.post("/v1/topic/create", topic="builds")
    await ben.post("/v1/topic/subscribe", topic="builds")
    await ann.send("#builds", "green", client_message_id="c")
    await until(ben, ["green"])
    again = "UPDATE outbox SET own_post = 'waiting'"  # as if the process had ended before the mark was written
    await laptop.mesh.outbox.store.writer.run(lambda tx: tx.db.execute(again).fetchall())
    laptop.mesh.own_posts.wake()
    left = "SELECT count(*) FROM outbox WHERE own_post = 'waiting'"
    await eventually(
        lambda: laptop.mesh.outbox.store.pool.run(lambda db: db.execute(left).get), lambda count: count == 0
    )
    assert await bodies(ben) == ["green"]


async def test_a_relay_without_agents_carries_mail_of_hosts_and_refuses_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_agents(settings: DeliverySettings) -> dict[str, Any]:
        offered = message_features(settings)
        return {name: value for name, value in offered.items() if name not in ("agents", "receipts", "gaps")}

    with monkeypatch.context() as patched:
        patched.setattr("posthouse.relay.context.message_features", without_agents)
        async with open_house(tmp_path) as house, host_at(house, "l") as laptop, host_at(house, "b") as build:
            ann, ben = await laptop.add_agent("ann"), await laptop.add_agent("ben")
            await build.add_agent("tester")
            for said in (await laptop.send(f"tester@{build.node}", "x"), await ann.send(build.node, "x")):
                assert (said.status, said["error"]) == (503, "relay_too_old"), said.body
                assert "Update the relay" in said["hint"]
            assert (await laptop.get("/v1/outbox"))["items"] == []
            await ann.send("ben", "local")
            await until(ben, ["local"])
            await laptop.send(build.node, "between hosts")
            await until(build, ["between hosts"])
