"""The inbox over its routes: what came, once each, filtered, waited for and marked as seen."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from posthouse.client import Delivery, Mailbox
from posthouse.daemon.inbox.inbox import INBOX, Inbox
from posthouse.daemon.inbox.inbox_items import NewItem
from posthouse.daemon.inbox.selection import InboxFilter
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock, SystemClock, format_utc
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.relay.ops.maintenance import backup_relay, restore_relay
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.client.house import House
from tests.client.waiting import until
from tests.daemon.hosts import Host, eventually, host_at, make_host, running
from tests.daemon.old_stores import make_old_store


def item(number: int, sender: str = "s", client_id: str | None = None, body: str | None = None) -> NewItem:
    return NewItem(
        id=f"{number:026d}",
        client_message_id=client_id or f"c{number}",
        message_id=f"{number:064x}",
        mesh="main",
        topic=None,
        sender=sender,
        sender_name=None,
        body=body or f"m{number}",
        meta="",
        reply_to_id=None,
        priority="next",
        budget=None,
        undecryptable=None,
    )


async def test_a_request_is_work_after_the_clock_was_ahead_for_a_moment(tmp_path: Path) -> None:
    clock = FakeClock()
    inbox = Inbox(tmp_path / "inbox.db", "main", clock)
    try:
        clock.step_wall(10 * DAY_S)
        await inbox.put([item(1)])
        clock.step_wall(-10 * DAY_S)
        deadline = format_utc(clock.wall_ns() + 60 * SECOND_NS)
        request = item(2)._replace(meta=json.dumps({"request": "queue", "valid_until": deadline}))
        assert [each.body for each in await inbox.put([request])] == ["m2"]
        clock.advance(61)
        assert await inbox.put([item(3)._replace(meta=request.meta)]) == []
    finally:
        inbox.close()


async def test_a_message_is_stored_and_announced_once_per_sender_and_id(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox.db", "main", FakeClock())
    events: list[str] = []
    inbox.on_new.append(lambda fresh: events.extend(each.id for each in fresh))
    try:
        first = await inbox.put([item(1), item(2), item(3, client_id="c1", body="m1")])
        again = await inbox.put([item(4, client_id="c2", body="m2"), item(5)])
        other = await inbox.put([item(6, sender="t", client_id="c1")])
        assert [each.body for each in (*first, *again, *other)] == ["m1", "m2", "m5", "m6"]
        assert events == [each.id for each in (*first, *again, *other)]
        assert [each.body for each in await inbox.items(InboxFilter())] == ["m1", "m2", "m5", "m6"]
    finally:
        inbox.close()


async def test_another_message_under_a_known_id_is_kept_as_a_conflict(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox.db", "main", FakeClock())
    try:
        [first] = await inbox.put([item(1, body="pay 10")])
        [other] = await inbox.put([item(2, client_id="c1", body="pay 99")])
        assert (first.conflicts_with, other.conflicts_with) == (None, first.id)
        assert await inbox.put([item(3, client_id="c1", body="pay 99"), item(4, client_id="c1", body="pay 10")]) == []
        assert [each.body for each in await inbox.items(InboxFilter())] == ["pay 10", "pay 99"]
    finally:
        inbox.close()


async def test_a_relay_restored_from_a_backup_hides_no_message_from_the_inbox(house: House, bob: Host) -> None:
    key = NodeKey.generate()
    backup_relay(house.settings.data_dir / FILE_NAME, house.folder / "backup.db")
    await house.client(key).send(bob.node, "pay 10", client_message_id="order-1")
    await bob.until_bodies(1)
    await house.down()
    restore_relay(house.folder / "backup.db", house.settings.data_dir / FILE_NAME, SystemClock())
    await house.up()
    await house.client(key).send(bob.node, "pay 99", client_message_id="order-1")
    await bob.until_bodies(2)
    newest, first = (await bob.get("/v1/inbox"))["items"]
    assert (newest["body"], newest["conflicts_with"]) == ("pay 99", first["id"])
    assert (first["body"], first["conflicts_with"]) == ("pay 10", None)


_FIRST_COLUMNS = (
    "position, id, client_message_id, message_id, mesh, sender, body, meta, received_at_ns, priority, bridge"
)


def old_rows(*numbers: int) -> str:
    """Return SQL that inserts messages into the tables of any version."""
    rows = [f"({n}, '{n:026d}', 'c{n}', '{n:064x}', 'main', 's', 'm{n}', '', {n}, 'next', 'off')" for n in numbers]
    return f"INSERT INTO inbox ({_FIRST_COLUMNS}) VALUES {', '.join(rows)};"


async def test_an_inbox_of_the_first_version_keeps_its_mail_and_its_positions(tmp_path: Path) -> None:
    path = tmp_path / "inbox.db"
    make_old_store(path, INBOX, 1, old_rows(1, 2) + "DELETE FROM inbox WHERE position = 2")
    inbox = Inbox(path, "main", FakeClock())
    try:
        assert [(each.position, each.body) for each in await inbox.items(InboxFilter())] == [(1, "m1")]
        [third] = await inbox.put([item(3)])
        assert third.position == 3  # position 2 was used before the upgrade
        assert await inbox.put([item(4, client_id="c1", body="m1")]) == []
    finally:
        inbox.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_mail_of_an_older_inbox_is_in_the_default_inbox_with_its_read_state(tmp_path: Path, version: int) -> None:
    path = tmp_path / "inbox.db"
    make_old_store(path, INBOX, version, old_rows(1, 2) + "UPDATE inbox SET seen_at_ns = 7 WHERE position = 1")
    inbox = Inbox(path, "main", FakeClock())
    try:
        found = await inbox.items(InboxFilter())
        assert [(each.body, each.seen_at_ns, each.agent) for each in found] == [("m1", 7, ""), ("m2", None, "")]
        assert await inbox.items(InboxFilter(agent="claude")) == []
        assert await inbox.unread_counts() == {"": 1}
        assert await inbox.put([item(4, client_id="c1", body="m1")]) == [], "a retry across the upgrade is no new mail"
    finally:
        inbox.close()


async def test_every_agent_has_its_own_copy_and_its_own_read_state(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox.db", "main", FakeClock())
    try:
        fresh = await inbox.put([item(1)._replace(agents=("ann", "ben")), item(2)._replace(agents=("ben",))])
        assert [(each.body, each.agent) for each in fresh] == [("m1", "ann"), ("m1", "ben"), ("m2", "ben")]
        assert await inbox.mark_seen([fresh[0].id], "ann") == 1
        assert await inbox.mark_seen([fresh[2].id], "ann") == 0, "it is not in this inbox"
        assert await inbox.unread_counts() == {"ben": 2}
        assert (await inbox.find(fresh[1].id, "ben")).seen_at_ns is None
        with pytest.raises(PosthouseError) as failure:
            await inbox.find(fresh[2].id, "ann")
        assert failure.value.code == "inbox_item_unknown"
        await inbox.rename_agent("ben", "bob")
        assert [each.body for each in await inbox.items(InboxFilter(agent="bob"))] == ["m1", "m2"]
        later_ns = FakeClock().wall_ns() + 10**18
        assert await inbox.delete_before(later_ns) == 0, "bob has read none of it"
        await inbox.mark_seen([each.id for each in fresh], "bob")
        assert await inbox.delete_before(later_ns) == 2
        assert await inbox.unread_counts() == {}
    finally:
        inbox.close()


async def test_one_id_of_two_agents_of_a_host_is_two_messages(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox.db", "main", FakeClock())
    try:
        ann = await inbox.put([item(1, client_id="c")._replace(from_agent="ann")])
        ben = await inbox.put([item(2, client_id="c", body="m1")._replace(from_agent="ben")])
        again = await inbox.put([item(3, client_id="c", body="m1")._replace(from_agent="ben")])
        assert [len(ann), len(ben), len(again)] == [1, 1, 0]
        assert ben[0].conflicts_with is None
    finally:
        inbox.close()


async def test_old_messages_are_deleted_and_their_places_not_given_out_again(tmp_path: Path) -> None:
    clock = FakeClock()
    inbox = Inbox(tmp_path / "inbox.db", "main", clock)
    try:
        [first] = await inbox.put([item(1)])
        await inbox.mark_seen([first.id])
        clock.advance(31 * 86_400)
        assert await inbox.delete_before(clock.wall_ns() - 30 * 86_400 * 10**9) == 1
        [second] = await inbox.put([item(2)])
        assert second.position > first.position
        assert [each.id for each in await inbox.items(InboxFilter())] == [second.id]
    finally:
        inbox.close()


async def test_items_have_every_field_of_the_contract(alice: Host, bob: Host) -> None:
    await alice.send(bob.node, "hello", meta={"usage": {"model": "m"}}, priority="low", mentions=[bob.node])
    [found] = (await bob.get("/v1/inbox", wait_s=10))["items"]
    contract = {
        *("id", "client_message_id", "message_id", "mesh", "topic", "sender", "sender_name", "body", "meta"),
        *("received_at", "reply_to_id", "seen_at"),
    }
    assert contract <= set(found)
    assert (found["mesh"], found["topic"], found["meta"]) == ("main", None, {"usage": {"model": "m"}})
    for key in (found["id"], found["message_id"]):
        shown = (await bob.get(f"/v1/inbox/{key}")).body
        assert shown | {"age_s": found["age_s"]} == found


async def test_filters(house: House, alice: Host, bob: Host) -> None:
    async with host_at(house, "carol") as carol:
        await alice.post("/v1/topic/create", topic="news.all")
        await bob.post("/v1/topic/subscribe", topic="news.>")
        await alice.send(bob.node, "one")
        await bob.until_bodies(1)
        await carol.send(bob.node, "two")
        await bob.until_bodies(2)
        posted = await alice.post("/v1/topic/post", topic="news.all", message="three")
        assert posted.status == 202
        await bob.until_bodies(3)

        async def bodies(**wanted: object) -> list[str]:
            return [each["body"] for each in (await bob.get("/v1/inbox", **wanted))["items"]]

        items = (await bob.get("/v1/inbox"))["items"]
        assert [each["body"] for each in items] == ["three", "two", "one"]
        assert await bodies(**{"from": alice.node}) == ["three", "one"]
        assert await bodies(topic="news.all") == await bodies(topic="#news.all") == ["three"]
        assert await bodies(limit=1) == ["three"]
        assert await bodies(since=items[-1]["id"]) == await bodies(after=items[-1]["message_id"]) == ["two", "three"]
        assert await bodies(since=items[0]["received_at"]) == ["three"]
        assert (await bob.post("/v1/inbox/seen", ids=[items[0]["id"], items[1]["message_id"]]))["count"] == 2
        assert (await bob.post("/v1/inbox/seen", ids=[items[0]["id"]]))["count"] == 0
        assert await bodies(unread="true") == ["one"]
        assert (await bob.get(f"/v1/inbox/{items[0]['id']}"))["seen_at"]


async def test_waiting_returns_when_mail_comes_and_not_before(alice: Host, bob: Host) -> None:
    waiting = asyncio.create_task(bob.get("/v1/inbox", wait_s=15))
    await until(lambda: bob.daemon.context.waiters.count == 1)
    assert not waiting.done()
    assert bob.daemon.server.dispatcher.slots.running == 0
    await alice.send(bob.node, "wake up")
    async with asyncio.timeout(10):
        assert [each["body"] for each in (await waiting)["items"]] == ["wake up"]


async def test_waiting_for_one_sender_sleeps_through_the_mail_of_others(house: House, alice: Host, bob: Host) -> None:
    async with host_at(house, "carol") as carol:
        waiting = asyncio.create_task(bob.ask("GET", "/v1/inbox", params={"wait_s": 15, "from": carol.node}))
        await until(lambda: bob.daemon.context.waiters.count == 1)
        await alice.send(bob.node, "not this")
        await bob.until_bodies(1)
        assert not waiting.done()
        await carol.send(bob.node, "this")
        assert [each["body"] for each in (await waiting)["items"]] == ["this"]


async def test_waiting_ends_empty_when_its_time_is_over(bob: Host) -> None:
    assert (await bob.get("/v1/inbox", wait_s=0.05))["items"] == []


async def test_sleepers_do_not_keep_others_from_being_answered(alice: Host, bob: Host) -> None:
    sleepers = [asyncio.create_task(bob.get("/v1/inbox", wait_s=15)) for _ in range(40)]
    await until(lambda: bob.daemon.context.waiters.count == 40)
    sleepers += [asyncio.create_task(bob.get("/v1/inbox", wait_s=15)) for _ in range(40)]
    await until(lambda: bob.daemon.context.waiters.count == 80)
    assert (await bob.get("/v1/version")).status == 200
    await alice.send(bob.node, "all up")
    answers = await asyncio.gather(*sleepers)
    assert {answer.status for answer in answers} == {200}
    assert all(len(answer["items"]) == 1 for answer in answers)


async def test_a_sleeper_that_goes_away_leaves_its_place(bob: Host) -> None:
    before = list(bob.mesh.inbox.on_new)
    asked = asyncio.create_task(bob.get("/v1/inbox", wait_s=60))
    await until(lambda: bob.daemon.context.waiters.count == 1)
    asked.cancel()
    await until(lambda: bob.daemon.context.waiters.count == 0)
    assert bob.mesh.inbox.on_new == before


# mail that cannot be opened


async def send_sealed_garbage(house: House, to: str) -> str:
    sender = house.client()
    event = sender.sign(
        base64.b64encode(b"\x07" * 80).decode(),
        kind=1000,
        tags=[("p", to), ("c", "garbage"), ("enc", "box")],
    )
    await sender.publish_event(event)
    return event.id


async def test_mail_that_cannot_be_opened_is_labelled_and_rejected(house: House, bob: Host) -> None:
    message_id = await send_sealed_garbage(house, bob.node)
    [found] = (await bob.get("/v1/inbox", wait_s=10))["items"]
    assert found["message_id"] == message_id
    assert found["body"] is None
    assert found["undecryptable"]

    async def state() -> str:
        return (await house.clients[0].message(message_id)).deliveries[0].state

    assert await eventually(state, lambda now: now == "rejected") == "rejected"
    assert (await house.clients[0].message(message_id)).deliveries[0].reason == "undecryptable"


async def test_messages_behind_an_undecryptable_one_still_arrive(house: House, alice: Host, bob: Host) -> None:
    await send_sealed_garbage(house, bob.node)
    await alice.send(bob.node, "good")
    found = await eventually(bob.bodies, lambda bodies: len(bodies) == 2)
    assert found == [None, "good"]


# trouble


async def test_a_daemon_that_cannot_write_its_inbox_does_not_receive_until_it_can(
    house: House, alice: Host, bob: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, probe = bob.mesh.inbox.put, bob.mesh.inbox.probe
    is_full = True

    async def refuse(*_given: object) -> None:
        if is_full:
            raise error("store_full", reason="for the test")

    async def put_or_refuse(items: Sequence[NewItem]) -> object:
        await refuse()
        return await put(items)

    async def probe_or_refuse() -> None:
        await refuse()
        await probe()

    monkeypatch.setattr(bob.mesh.inbox, "put", put_or_refuse)
    monkeypatch.setattr(bob.mesh.inbox, "probe", probe_or_refuse)
    monkeypatch.setattr("posthouse.daemon.uplink._PROBE_S", 0.05)
    sent = await alice.send(bob.node, "later")
    await until(lambda: bob.mesh.uplink.mailbox is None)
    await alice.until_status(sent["client_message_id"], "done")
    states = await alice.get(f"/v1/messages/{sent['message_id']}")
    assert states["relay"]["deliveries"][0]["state"] in ("queued", "sent")
    is_full = False
    assert await bob.until_bodies(1) == ["later"]


async def test_a_repeated_message_is_confirmed_and_announced_once(house: House, alice: Host, bob: Host) -> None:
    confirm = Mailbox.confirm
    listener = bob.daemon.events.subscribe(100)
    swallowed: list[Delivery] = []

    def swallow(mailbox: Mailbox, *deliveries: Delivery) -> object:
        if not swallowed:
            swallowed.extend(deliveries)
            bob.mesh.uplink.client._link.restart()
            return None
        return confirm(mailbox, *deliveries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mailbox, "confirm", swallow)
        sent = await alice.send(bob.node, "hello")

        async def state() -> str:
            return str((await alice.get(f"/v1/messages/{sent['message_id']}"))["relay"]["deliveries"][0]["state"])

        await alice.until_status(sent["client_message_id"], "done")
        await eventually(state, lambda now: now == "confirmed")
    assert len(swallowed) == 1
    assert await bob.bodies() == ["hello"]
    events = [each for each in await listener.next_batch(5) if each.event == "message"]
    assert len(events) == 1


async def test_the_record_of_read_mail_names_rows_whichever_id_marked_it(tmp_path: Path) -> None:
    host = make_host(tmp_path, "ws://127.0.0.1:9", "a")
    async with running(host):
        await host.mesh.inbox.put([item(1), item(2), item(3)])
        short = item(3).message_id[:10]
        await host.mesh.inbox.put([item(0xAB << 200)])
        newest = item(0xAB << 200)
        said = await host.post("/v1/inbox/seen", ids=[item(1).id, item(2).message_id, newest.message_id[:20]])
        assert said["count"] == 3, said.body
        records = host.mesh.inbox.store.pool.run_blocking(
            lambda db: db.execute("SELECT body FROM journal WHERE type = 'inbox.seen'").fetchall()
        )
        assert [json.loads(str(body))["ids"] for (body,) in records] == [[item(1).id, item(2).id, newest.id]]
        for wrong in ("nothing", short):
            refused = await host.post("/v1/inbox/seen", ids=[item(3).id, wrong])
            assert refused.status in (404, 409)
        assert (await host.get(f"/v1/inbox/{item(3).id}"))["seen_at"] is None, "a refused request marks nothing"
