"""The routes that ask the relay: topics, history, states, peers, profile, locks; and those about the daemon itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from posthouse.daemon.metrics import METRICS
from posthouse.version import __version__
from tests.client.house import ADMIN, House
from tests.client.waiting import until
from tests.daemon.hosts import Host, eventually, host_at


async def test_topics_are_made_subscribed_posted_to_and_listed(alice: Host, bob: Host) -> None:
    assert (await alice.post("/v1/topic/create", topic="#news")).status == 201
    assert (await bob.post("/v1/topic/subscribe", topic="news"))["subscribed"] is True
    listed = await bob.get("/v1/topic/list")
    assert (listed["topics"], listed["subscriptions"], listed["is_cached"]) == (["news"], ["news"], False)
    await alice.post("/v1/topic/post", topic="news", message="one")
    assert await bob.until_bodies(1) == ["one"]
    assert (await bob.post("/v1/topic/unsubscribe", topic="news"))["subscribed"] is False
    await alice.post("/v1/topic/post", topic="news", message="two")
    await alice.send(bob.node, "direct")
    assert await bob.until_bodies(2) == ["one", "direct"]


async def test_posting_answers_as_send_does(alice: Host) -> None:
    await alice.post("/v1/topic/create", topic="news")
    given: dict[str, Any] = {"topic": "news", "message": "m", "client_message_id": "c"}
    assert (await alice.post("/v1/topic/post", **given)).status == 202
    assert (await alice.post("/v1/topic/post", **(given | {"message": "other"}))).status == 409
    assert (await alice.send("#news", "m", client_message_id="c")).status in (200, 202)


async def test_history_of_a_member_and_of_a_topic_newest_first(house: House, alice: Host, bob: Host) -> None:
    await alice.post("/v1/topic/create", topic="news")
    await bob.post("/v1/topic/subscribe", topic="news")
    await alice.send(bob.node, "one")
    await bob.until_bodies(1)
    await bob.send(alice.node, "two")
    await alice.until_bodies(1)
    await alice.send("#news", "three")
    await bob.until_bodies(2)
    for host, peer in ((alice, bob), (bob, alice)):
        talk = await host.get("/v1/history", **{"with": peer.node})
        assert [message["body"] for message in talk["messages"]] == ["two", "one"]
    topic = await bob.get("/v1/history", topic="#news")
    assert [message["body"] for message in topic["messages"]] == ["three"]
    first = await alice.get("/v1/history", **{"with": bob.node, "limit": 1})
    rest = await alice.get("/v1/history", **{"with": bob.node, "limit": 1, "before": first["before"]})
    assert [first["messages"][0]["body"], rest["messages"][0]["body"]] == ["two", "one"]


async def test_a_third_member_sees_nothing_of_a_direct_talk(house: House, alice: Host, bob: Host) -> None:
    await alice.send(bob.node, "secret")
    await bob.until_bodies(1)
    async with host_at(house, "carol") as carol:
        assert (await carol.get("/v1/history", **{"with": alice.node}))["messages"] == []


async def test_states_of_a_message_are_shown_with_and_without_the_relay(house: House, alice: Host, bob: Host) -> None:
    sent = await alice.send(bob.node, "hello", client_message_id="c")
    await alice.until_status("c", "done")
    await bob.until_bodies(1)
    for key in (sent["message_id"], "c", sent["id"]):
        answer = await alice.get(f"/v1/messages/{key}")
        assert answer["outbox"]["status"] == "done"
        assert answer["relay"]["deliveries"][0]["recipient"] == bob.node
    received = await bob.get(f"/v1/messages/{sent['message_id']}")
    assert received["outbox"] is None
    assert received["relay"]["id"] == sent["message_id"]
    await house.down()
    await until(lambda: not alice.mesh.uplink.is_up)
    away = await alice.get(f"/v1/messages/{sent['message_id']}")
    assert (away["relay"], away["relay_error"]) == (None, "relay_unreachable")
    assert away["outbox"]["status"] == "done"


@pytest.mark.parametrize("key", ["nothing", "a" * 64])
async def test_an_unknown_message_is_not_found(alice: Host, key: str) -> None:
    assert (await alice.get(f"/v1/messages/{key}")).status == 404


async def test_peers_with_presence(house: House, alice: Host) -> None:
    admin = house.client(ADMIN)
    async with host_at(house, "bob") as bob:
        await admin.meshes.add_member("main", bob.node, "bob")
        await alice.mesh.uplink.refresh()
        await until(lambda: bob.node in alice.mesh.uplink.online)
        peers = {peer["node"]: peer for peer in (await alice.get("/v1/peers"))["peers"]}
        assert peers[bob.node].items() >= {"name": "bob", "online": True, "is_self": False}.items()
        assert peers[alice.node]["is_self"] is True
    async with asyncio.timeout(20):
        await eventually(
            lambda: alice.get("/v1/peers"),
            lambda answer: not next(peer for peer in answer["peers"] if peer["node"] == bob.node)["online"],
        )


async def test_a_profile_is_applied_field_by_field_and_seen_by_others(house: House, alice: Host) -> None:
    assert (await alice.post("/v1/profile", status="working", title="Writer"))["applied"] == {
        "status": "working",
        "title": "Writer",
    }
    applied = (await alice.post("/v1/profile", status="dnd", capabilities=["write"]))["applied"]
    assert applied == {"status": "dnd", "title": "Writer", "capabilities": ["write"]}
    async with host_at(house, "bob") as bob:
        peers = {peer["node"]: peer for peer in (await bob.get("/v1/peers"))["peers"]}
        assert peers[alice.node]["status"] == "dnd"


@pytest.mark.parametrize("given", [{"status": "asleep"}, {"visible": "yes"}, {"colour": "red"}])
async def test_a_wrong_profile_is_refused(alice: Host, given: dict[str, Any]) -> None:
    answer = await alice.post("/v1/profile", **given)
    assert (answer.status, answer["error"]) == (400, "body_invalid")


async def test_locks_as_the_relay_has_them(alice: Host, bob: Host) -> None:
    granted = await alice.post("/v1/locks/acquire", resource="db/main", lease_ms=30_000)
    assert granted.status == 200
    assert granted["owner"] == alice.node
    held = await bob.post("/v1/locks/acquire", resource="db/main", lease_ms=30_000)
    assert (held.status, held["error"]) == (409, "held")
    renewed = await alice.post("/v1/locks/renew", resource="db/main", token=granted["token"], lease_ms=60_000)
    assert renewed["token"] == granted["token"]
    waiting = asyncio.create_task(bob.post("/v1/locks/acquire", resource="db/main", lease_ms=30_000, wait_ms=15_000))
    await until(lambda: bob.daemon.context.waiters.count == 1)
    assert (await alice.post("/v1/locks/release", resource="db/main", token=granted["token"])).status == 200
    assert (await waiting)["token"] > granted["token"]
    wrong = await alice.post("/v1/locks/acquire", resource="db/main", lease_ms=1)
    assert wrong.status == 400


async def test_requests_that_need_the_relay_are_refused_at_once_without_it(house: House, alice: Host) -> None:
    await house.down()
    await until(lambda: not alice.mesh.uplink.is_up)
    for path, body in (
        ("/v1/topic/create", {"topic": "news"}),
        ("/v1/profile", {"status": "idle"}),
        ("/v1/locks/acquire", {"resource": "r", "lease_ms": 5_000}),
    ):
        answer = await alice.post(path, **body)
        assert (answer.status, answer["error"]) == (503, "relay_unreachable")
    assert (await alice.get("/v1/topic/list"))["is_cached"] is True
    assert (await alice.get("/v1/peers"))["is_cached"] is True
    assert (await alice.get("/v1/history", topic="news")).status == 503


async def test_version_and_health(alice: Host) -> None:
    version = await alice.get("/v1/version")
    assert (version["version"], version["ipc_api"], version["schema"]) == (__version__, 1, 2)
    assert "send" in version["features"]
    health = await alice.get("/v1/health")
    contract = {"connected", "lag_ms", "queue_depth", "inflight", "mesh", "member", "uptime_s"}
    assert contract <= set(health.body)
    assert (health["connected"], health["mesh"], health["lag_ms"]) == (True, "main", 0)


async def test_every_declared_metric_is_shown_and_counts(alice: Host, bob: Host) -> None:
    await alice.send(bob.node, "hello", client_message_id="c")
    await alice.until_status("c", "done")
    text = (await alice.get("/v1/metrics")).body
    for metric in METRICS:
        assert f"# HELP {metric.name}" in text
    assert "posthouse_daemon_outbox_sent_total 1.0" in text
    assert "posthouse_daemon_connected 1.0" in text
    assert 'posthouse_daemon_sends_total{status="202"} 1.0' in text
