"""Several relays on one database behave as one: events, rights, logins, messages, presence."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from posthouse.keys import NodeKey
from posthouse.model.clock import TEST_CLOCK_ENV
from posthouse.model.errors import PosthouseError
from posthouse.model.rate import Rate
from posthouse.relay.server import RelayServer
from tests.faults.host_faults import write_offset
from tests.relay.cluster.relays import cluster_of, place_key, relays, settings_of
from tests.relay.edge import PATIENCE_S, Author, Edge, Stream
from tests.relay.messages.correspondents import direct, reading, send

MEMBERS = "/v1/meshes/main/members"


async def next_events(stream: Stream, count: int) -> list[dict[str, Any]]:
    """Return the events that a subscription gets next."""
    return [(await stream.expect("EVENT"))[1] for _ in range(count)]


async def subscribe(stream: Stream) -> None:
    """Subscribe to everything that is published from now on."""
    await stream.send("REQ", "s", {}, {"kinds": [1, 20_500]})
    await stream.until("EOSE")


async def test_subscription_gets_the_events_of_all_relays_in_the_order_of_their_seqs(two: list[Edge]) -> None:
    author = two[0].admin
    async with two[0].stream(author) as here, two[1].stream(author) as there:
        await subscribe(here)
        await subscribe(there)
        events = [author.event(content=str(number)) for number in range(40)]
        replies = await asyncio.gather(*[two[n % 2].post("/v1/events", event) for n, event in enumerate(events)])
        order = [reply.value["id"] for reply in sorted(replies, key=lambda reply: int(reply.value["seq"]))]
        for stream in (here, there):
            assert [event["id"] for event in await next_events(stream, 40)] == order


async def test_login_that_began_at_one_relay_ends_at_another_and_works_once(two: list[Edge]) -> None:
    first, second = two
    author = first.admin
    given = (await first.post("/v1/auth/challenge", {"pubkey": author.node})).value
    proof = author.proof(given["relay"], ("challenge", given["challenge"]))
    token = (await second.post("/v1/auth", {"event": proof})).value["token"]
    assert (await first.get("/v1/meshes", token)).status == 200
    assert (await first.post("/v1/auth", {"event": proof})).code == "challenge_invalid"


async def test_stream_whose_relay_steps_its_clock_during_the_login_is_authenticated(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_file = tmp_path / "clock"
    write_offset(clock_file, 0)
    monkeypatch.setenv(TEST_CLOCK_ENV, str(clock_file))
    async with relays(tmp_path, database) as (edge,), edge.stream() as stream:
        write_offset(clock_file, 10 * 60)
        assert (await stream.authenticate(edge.admin))["node"] == edge.admin.node


async def test_relay_with_another_key_does_not_start(two: list[Edge], tmp_path: Path, database: str) -> None:
    place_key(tmp_path / "other", NodeKey.generate())
    with pytest.raises(PosthouseError) as refused:
        await RelayServer(settings_of(tmp_path / "other", database, two[0].admin)).start()
    assert refused.value.code == "relay_key_differs"
    assert refused.value.fields["relay"] == two[0].relay


async def test_relay_without_advertise_is_refused_while_others_share_the_database(
    two: list[Edge], tmp_path: Path, database: str
) -> None:
    place_key(tmp_path / "alone", two[0].server.key)
    alone = replace(settings_of(tmp_path / "alone", database, two[0].admin), advertise=None)
    with pytest.raises(PosthouseError) as refused:
        await RelayServer(alone).start()
    assert refused.value.code == "store_in_use"


async def test_member_that_one_relay_removes_can_write_and_read_at_no_other(two: list[Edge]) -> None:
    first, second = two
    member, admin = Author(), await first.token(first.admin)
    assert (await first.post("/v1/meshes", {"name": "closed"}, admin)).status == 201
    joined = await first.post("/v1/meshes/closed/members", {"node": member.node, "name": "rosa"}, admin)
    assert joined.status == 200, joined.body
    in_mesh = [("mesh", "closed")]
    assert (await second.post("/v1/events", member.event(1, "in", in_mesh))).status == 201
    async with second.stream(member) as stream:
        await stream.send("REQ", "s", {}, {"mesh": "closed"})
        await stream.until("EOSE")
        left = await first.send("DELETE", f"/v1/meshes/closed/members?node={member.node}", token=admin)
        assert left.status == 200, left.body
        assert (await second.post("/v1/events", member.event(1, "out", in_mesh))).code == "not_member"
        await first.publish(first.admin.event(1, "secret", in_mesh))
        assert (await stream.receive())[:2] == ["CLOSED", "s"]


async def test_mesh_that_one_relay_deletes_is_gone_at_all(two: list[Edge]) -> None:
    first, second = two
    admin = await first.token(first.admin)
    assert (await first.post("/v1/meshes", {"name": "short"}, admin)).status == 201
    event = first.admin.event(1, "in", [("mesh", "short")])
    assert (await second.post("/v1/events", event)).status == 201
    deleted = await first.send("DELETE", "/v1/meshes/short", token=admin)
    assert deleted.status == 200, deleted.body
    refused = await second.post("/v1/events", first.admin.event(1, "out", [("mesh", "short")]))
    assert refused.code == "mesh_deleted"


async def test_two_relays_do_not_give_one_name_to_two_members(two: list[Edge]) -> None:
    tokens = [await edge.token(edge.admin) for edge in two]
    replies = await asyncio.gather(
        *[
            edge.post(MEMBERS, {"node": Author().node, "name": "rosa"}, token)
            for edge, token in zip(two, tokens, strict=True)
        ]
    )
    assert sorted(reply.status for reply in replies) == [200, 409]
    assert [reply.code for reply in replies if reply.status == 409] == ["member_name_taken"]


async def test_direct_message_reaches_its_reader_at_another_relay_and_its_confirmation_comes_back(
    two: list[Edge],
) -> None:
    sender, reader = Author(), Author()
    async with reading(two[0], sender) as sending, reading(two[1], reader) as receiving:
        message = direct(sender, reader, "hello")
        assert [reply.status for reply in await send(two[0], message)] == [201]
        ((delivered, _about),) = await receiving.delivered(1)
        assert delivered["id"] == message["id"]
        assert (await receiving.confirm(sender, message["id"]))[1] is True
        confirmed = await sending.next("CONFIRMED")
        assert message["id"] in str(confirmed)


async def test_confirmation_sent_to_another_relay_makes_room_in_the_window_of_the_session(two: list[Edge]) -> None:
    sender, reader = Author(), Author()
    async with reading(two[1], reader, window=1) as receiving:
        first, second = direct(sender, reader, "one"), direct(sender, reader, "two")
        await send(two[0], first, second)
        assert await receiving.bodies(1) == ["one"]
        confirmation = reader.event(1001, "", [("p", sender.node), ("e", first["id"])])
        assert (await two[0].post("/v1/events", confirmation)).status == 201
        assert await receiving.bodies(1) == ["two"]


async def test_relays_divide_the_rate_of_a_node(tmp_path: Path, database: str) -> None:
    async with relays(tmp_path, database, database, event_rate=Rate(1, 40)) as two:
        author = Author()
        for edge in two:
            replies = [await edge.post("/v1/events", author.event(content=str(number))) for number in range(30)]
            accepted = [reply for reply in replies if reply.status == 201]
            assert 20 <= len(accepted) < 30, "a relay that is alone would accept all"
            assert replies[-1].code == "rate_limited"


async def test_ephemeral_event_and_presence_reach_the_streams_of_other_relays(two: list[Edge]) -> None:
    watcher, newcomer = Author(), Author()
    async with reading(two[1], watcher) as watching, two[1].stream(watcher) as live:
        await subscribe(live)
        async with reading(two[0], newcomer) as present:
            assert [entry["node"] for entry in present.roster if entry["online"]] == sorted(
                [watcher.node, newcomer.node]
            )
            assert await watching.next("PRESENCE") == ["main", newcomer.node, "online"]
            typing = newcomer.event(20_500, "typing")
            assert (await two[0].post("/v1/events", typing)).status == 202
            assert (await next_events(live, 1))[0]["id"] == typing["id"]
        assert await watching.next("PRESENCE") == ["main", newcomer.node, "offline"]


async def test_new_session_of_a_reader_ends_the_one_at_another_relay_and_gets_what_is_left(two: list[Edge]) -> None:
    sender, reader = Author(), Author()
    async with reading(two[0], reader) as old:
        await send(two[0], direct(sender, reader, "one"))
        assert await old.bodies(1) == ["one"]
        async with reading(two[1], reader) as new:
            await old.next("END")
            assert old.stream.socket.close_code == 4003
            ((_event, about),) = await new.delivered(1)
            assert about["attempt"] == 2
            await send(two[0], direct(sender, reader, "two"))
            assert await new.bodies(1) == ["two"]


async def test_write_that_a_replaced_session_deferred_is_dropped(two: list[Edge]) -> None:
    sender, reader = Author(), Author()
    engines = [edge.server.context.engine for edge in two]
    async with reading(two[0], reader) as old:
        shared = engines[1].store.shared
        assert shared is not None
        await shared.next_session("main", reader.node)  # as a relay does that has waited for the other one in vain
        await send(two[0], direct(sender, reader, "one"))
        assert await old.bodies(1) == ["one"]
        await engines[0].sessions.settled(("main", reader.node))
        async with reading(two[1], reader) as new:
            ((_event, about),) = await new.delivered(1)
            assert about["attempt"] == 1, "the old session has noted that it was sent"


@pytest.mark.parametrize("sweeper", ["queues", "retention"])
async def test_only_the_leader_sweeps_and_not_after_it_was_replaced(two: list[Edge], sweeper: str) -> None:
    async def sweep(edge: Edge) -> str:
        engine = edge.server.context.engine
        try:
            await (engine.sweeper.sweep() if sweeper == "queues" else engine.retention.sweep())
        except PosthouseError as refusal:
            return refusal.code
        return "swept"

    first, second = two
    assert [await sweep(first), await sweep(second)] == ["swept", "leader_lost"]
    shared, term = second.server.context.engine.store.shared, cluster_of(first).term
    assert shared is not None and term is not None
    assert await asyncio.to_thread(shared.begin_term, term, cluster_of(second).relay_id, "another boot", 0)
    assert await sweep(first) == "leader_lost"


async def test_every_relay_shows_the_leader_the_followers_and_their_beats(two: list[Edge]) -> None:
    async def ask(edge: Edge) -> dict[str, Any]:
        shown: dict[str, Any] = (await edge.get("/v1/cluster", await edge.token(edge.admin))).value
        return shown

    async def has_beaten() -> bool:
        shown = [await ask(edge) for edge in two]
        return all(len(each["relays"]) == 2 and min(row["beat"] for row in each["relays"]) >= 2 for each in shown)

    async with asyncio.timeout(PATIENCE_S):
        while not await has_beaten():  # noqa: ASYNC110 - no event says when
            await asyncio.sleep(0.05)
    first, second = [await ask(edge) for edge in two]
    assert first["leader"] == second["leader"] == first["relay_id"] != second["relay_id"]
    for shown in (first, second):
        urls = {f"http://{edge.server.address}" for edge in two}
        assert {each["url"] for each in shown["relays"]} == urls
        assert [each["relay_id"] for each in shown["relays"] if each["is_leader"]] == [first["relay_id"]]
        assert [each["relay_id"] for each in shown["relays"] if each["is_self"]] == [shown["relay_id"]]
        assert all(each["is_alive"] for each in shown["relays"])
    texts = [(await edge.get("/metrics", await edge.token(edge.admin))).body.decode() for edge in two]
    assert "posthouse_relay_leader 1.0" in texts[0] and "posthouse_relay_leader 0.0" in texts[1]
    assert 'sweep_age_seconds{sweeper="retention"}' in texts[0]
    assert 'sweep_age_seconds{sweeper="retention"}' not in texts[1], "a follower does not sweep"
    assert all("posthouse_relay_cluster_relays 2.0" in text for text in texts)
