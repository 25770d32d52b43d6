"""Whom a text names: members, prefixes and topics, from what was last heard of the mesh."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.client import Member
from posthouse.daemon.roster import Retained, Roster
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError
from tests.client.house import ADMIN, House
from tests.client.waiting import until
from tests.daemon.hosts import Host, host_at, make_host, running

NODES = [f"ed25519:{digits * 16}" for digits in ("aaaa", "bbbb")] + ["ed25519:" + "aaaa" * 3 + "cccc" * 13]


def roster(**names: str) -> Roster:
    made = Roster()
    made.set_members(Member(node, name, "member") for name, node in names.items())
    return made


def refused(made: Roster, to: str) -> str:
    with pytest.raises(PosthouseError) as failure:
        made.resolve(to, "main")
    return failure.value.code


def test_names_nodes_and_prefixes() -> None:
    made = roster(ann=NODES[0], ben=NODES[1], cat=NODES[2])
    assert made.resolve("ann", "main") == NODES[0]
    assert made.resolve(NODES[1], "main") == NODES[1]
    assert made.resolve("bbbbbbbb", "main") == NODES[1]
    assert made.resolve("ed25519:bbbbbbbbb", "main") == NODES[1]
    assert made.resolve("aaaaaaaaaaaacc", "main") == NODES[2]


def test_a_prefix_of_two_members_is_ambiguous() -> None:
    assert refused(roster(ann=NODES[0], cat=NODES[2]), "aaaaaaaa") == "recipient_ambiguous"


def test_a_name_that_is_also_the_prefix_of_another_is_ambiguous() -> None:
    assert refused(roster(bbbbbbbb=NODES[0], ben=NODES[1]), "bbbbbbbb") == "recipient_ambiguous"


def test_sixty_four_digits_are_a_key_even_if_a_member_has_them_as_its_name() -> None:
    digits = NODES[1].removeprefix("ed25519:")
    made = Roster()
    made.set_members([Member(NODES[0], digits, "member"), Member(NODES[1], "ben", "member")])
    assert made.resolve(digits, "main") == NODES[1]
    assert refused(made, digits.upper()) == "node_id_invalid"


def test_name_whose_key_changed_is_refused_alone_and_shown_for_no_sender() -> None:
    made = Roster()
    made.set_members([Member(NODES[1], "ben", "member", pinned=NODES[2]), Member(NODES[0], "ann", "member")])
    with pytest.raises(PosthouseError) as failure:
        made.resolve("ben", "lab")
    assert failure.value.code == "member_key_changed"
    assert f"posthouse trust ben --mesh lab --node {NODES[1]}" in failure.value.hint
    assert made.resolve("ann", "lab") == NODES[0]
    assert (made.name_of(NODES[1]), made.name_of(NODES[0])) == (None, "ann")
    assert made.resolve(NODES[1], "lab") == NODES[1], "a key is its own proof"


@pytest.mark.parametrize("to", ["aaaaaaa", "nobody", "AAAAAAAA", "", "ed25519:", "ed25519:aaaa"])
def test_a_text_that_names_no_member_is_unknown(to: str) -> None:
    assert refused(roster(ann=NODES[0]), to) == "member_name_unknown"


def test_a_full_key_works_whoever_it_is() -> None:
    node = NodeKey(b"n" * 32).node
    assert Roster().resolve(node, "main") == node
    assert Roster().resolve(node.removeprefix("ed25519:"), "main") == node


@settings(max_examples=100, deadline=None)
@given(
    nodes=st.lists(st.text("ab", min_size=64, max_size=64), min_size=1, max_size=6, unique=True),
    prefix=st.text("ab", min_size=8, max_size=64),
)
def test_a_prefix_names_the_one_member_it_fits(nodes: list[str], prefix: str) -> None:
    made = roster(**{f"member-{number}": f"ed25519:{node}" for number, node in enumerate(nodes)})
    fitting = [node for node in nodes if node.startswith(prefix)]
    if len(fitting) == 1:
        assert made.resolve(prefix, "main") == f"ed25519:{fitting[0]}"
    elif fitting:
        assert refused(made, prefix) == "recipient_ambiguous"
    elif len(prefix) == 64:
        assert made.resolve(prefix, "main") == f"ed25519:{prefix}"
    else:
        assert refused(made, prefix) == "member_name_unknown"


def test_roster_survives_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "roster.json"
    made = Roster(path)
    made.set_members([Member(NODES[0], "ann", "admin")])
    made.add_topic("news")
    made.set_retention(Retained(30))
    again = Roster(path)
    assert again.resolve("ann", "main") == NODES[0]
    assert again.resolve("#news", "main") == "#news"
    assert again.retention == Retained(30)
    path.write_text("{")
    assert Roster(path).members == []


async def test_names_and_topics_work_while_the_relay_is_away(house: House, alice: Host, bob: Host) -> None:
    admin = house.client(ADMIN)
    await admin.meshes.add_member("main", bob.node, "bob")
    await admin.meshes.create_topic("main", "news")
    assert (await alice.send("bob", "with the relay")).status == 202
    assert (await alice.send("#news", "with the relay")).status == 202
    await house.down()
    await until(lambda: not alice.mesh.uplink.is_up)
    assert (await alice.send("bob", "without")).status == 202
    assert (await alice.send("#news", "without")).status == 202
    assert (await alice.send("nobody", "without")).status == 404
    await alice.down()
    await alice.up()
    assert (await alice.send("bob", "after a restart")).status == 202
    assert (await alice.send("#news", "after a restart")).status == 202
    await house.up()
    assert await bob.until_bodies(3) == ["with the relay", "without", "after a restart"]


async def test_a_topic_that_a_daemon_has_not_heard_of_is_left_to_the_relay(house: House, tmp_path: Path) -> None:
    await house.client(ADMIN).meshes.create_topic("main", "news")
    await house.down()
    host = make_host(tmp_path, house.url, "new")
    async with running(host):
        post = await host.send("#news", "the daemon has never been connected", client_message_id="post")
        assert (post.status, post["topic_unverified"]) == (202, True)
        assert (await host.send("#newz", "mistyped", client_message_id="typo")).status == 202
        await house.up()
        await host.until_status("post", "done")
        assert (await host.until_status("typo", "dead"))["last_error"].startswith("topic_unknown")
        refusal = await host.send("#newz", "mistyped")
        assert (refusal.status, refusal["error"]) == (404, "topic_unknown")
        assert "topic_unverified" not in (await host.send("#news", "known by now")).body


async def test_a_relay_that_does_not_answer_refuses_no_topic(house: House, alice: Host) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    await house.client(ADMIN).meshes.create_topic("main", "news")
    alice.mesh.roster.set_topics([])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posthouse.daemon.uplink._REFRESH_TIMEOUT_S", 0.05)
        patch.setattr(alice.mesh.uplink, "refresh", never)
        assert (await alice.send("#news", "asked for and not heard", client_message_id="c")).status == 202
    await alice.until_status("c", "done")


async def test_a_daemon_that_is_no_member_waits_and_loses_nothing(house: House, tmp_path: Path) -> None:
    admin = house.client(ADMIN)
    await admin.meshes.create("team", is_open=False, name="admin")
    host = make_host(tmp_path, house.url, "late", mesh="team")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posthouse.daemon.uplink._AGAIN_S", 0.05)
        async with running(host):
            await until(lambda: host.mesh.uplink.is_up)
            assert (await host.send(ADMIN.node, "hello", client_message_id="c")).status == 202
            assert (await host.row("c"))["status"] == "pending"
            await admin.meshes.add_member("team", host.node, "late")
            await host.connected()
            await host.until_status("c", "done")


async def test_a_member_has_its_name_in_health_and_mail(house: House) -> None:
    async with host_at(house, "alice") as alice, host_at(house, "bob") as bob:
        admin = house.client(ADMIN)
        await admin.meshes.add_member("main", alice.node, "alice")
        await admin.meshes.add_member("main", bob.node, "bob")
        await alice.mesh.uplink.refresh()
        await bob.mesh.uplink.refresh()
        assert (await alice.get("/v1/health"))["member"] == "alice"
        await alice.send("bob", "hello")
        [item] = (await bob.get("/v1/inbox", wait_s=10))["items"]
        assert item["sender_name"] == "alice"


async def test_a_member_that_was_put_out_loses_nothing_until_it_is_let_in_again(house: House, tmp_path: Path) -> None:
    admin = house.client(ADMIN)
    await admin.meshes.create("team", is_open=False, name="admin")
    host = make_host(tmp_path, house.url, "member", mesh="team")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posthouse.daemon.uplink._AGAIN_S", 0.05)
        async with running(host):
            await admin.meshes.add_member("team", host.node, "member")
            await host.connected()
            await admin.meshes.remove_member("team", host.node)
            await house.down()
            await until(lambda: not host.mesh.uplink.is_up)
            assert (await host.send(ADMIN.node, "hello", client_message_id="c")).status == 202
            await house.up()
            await until(lambda: host.mesh.uplink.is_up and not host.mesh.uplink.is_admitted)
            assert (await host.row("c"))["status"] == "pending"
            await admin.meshes.add_member("team", host.node, "member")
            await host.until_status("c", "done")


async def test_a_member_that_is_removed_while_it_is_connected_is_out_at_once_and_back_when_let_in(
    house: House, tmp_path: Path
) -> None:
    admin = house.client(ADMIN)
    await admin.meshes.create("team", is_open=False, name="admin")
    host = make_host(tmp_path, house.url, "member", mesh="team")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posthouse.daemon.uplink._AGAIN_S", 0.05)
        async with running(host):
            await admin.meshes.add_member("team", host.node, "member")
            await host.connected()
            await admin.meshes.remove_member("team", host.node)
            await until(lambda: not host.mesh.uplink.is_admitted)
            assert (await host.send(ADMIN.node, "hello", client_message_id="c")).status == 202
            await admin.meshes.add_member("team", host.node, "member")
            await host.until_status("c", "done")


async def test_one_changed_key_stops_only_messages_to_that_name(house: House, alice: Host, bob: Host) -> None:
    admin, impostor = house.client(ADMIN), NodeKey.generate()
    await admin.meshes.add_member("main", bob.node, "bob")
    await admin.meshes.add_member("main", NodeKey.generate().node, "dave")
    assert (await alice.send("dave", "before")).status == 202
    dave = (await admin.meshes.resolve("dave", "main"),)
    await admin.meshes.remove_member("main", *dave)
    await admin.meshes.add_member("main", impostor.node, "dave")
    await alice.mesh.uplink.refresh()
    refusal = await alice.send("dave", "secret")
    assert (refusal.status, refusal["error"]) == (409, "member_key_changed")
    assert f"posthouse trust dave --mesh main --node {impostor.node}" in refusal["hint"]
    assert (await alice.send("bob", "still there")).status == 202
    await admin.meshes.add_member("main", NodeKey.generate().node, "erin")
    assert (await alice.send("erin", "new members are known")).status == 202
    marked = {peer["name"]: peer["pinned"] for peer in (await alice.get("/v1/peers"))["peers"] if peer["pinned"]}
    assert marked == {"dave": dave[0]}
