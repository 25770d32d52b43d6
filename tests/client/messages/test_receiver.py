from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from posthouse.client import Client, Confirmed, Pins, Presence
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError, Refused
from posthouse.model.profile import AgentProfile
from posthouse.relay.listen import Protection
from posthouse.relay.messages.settings import ConnectionPolicy, DeliverySettings
from tests.client.certificates import make_certificate
from tests.client.house import QUICK, House, open_house
from tests.client.messages.pair import bodies, opened, pair, some
from tests.client.waiting import take, until


async def test_waiting_messages_come_first_in_order_and_are_marked_as_stored(house: House) -> None:
    two = pair(house)
    await two.send_all(*map(str, range(120)))
    async with opened(two.bob, window=200) as box:
        assert box.waiting == 120  # known as soon as the mailbox is open
        waited = await some(box, 120)
        await two.send_all("live")
        (live,) = await some(box, 1)
    assert bodies(waited) == [str(number) for number in range(120)]
    assert {delivery.was_stored for delivery in waited} == {True}
    assert (live.body, live.was_stored, live.attempt) == ("live", False, 1)


async def test_iterating_and_confirming_empties_the_queue(house: House) -> None:
    two = pair(house)
    ids = await two.send_all(*map(str, range(60)))
    seen: list[str] = []
    async with opened(two.bob, window=10) as box, asyncio.timeout(20):
        async for delivery in box:
            seen.append(delivery.body)
            box.confirm(delivery)
            if len(seen) == 60:
                break
    assert seen == [str(number) for number in range(60)]
    assert set(await two.states(*ids)) == {"confirmed"}


async def test_at_most_a_window_is_sent_before_something_is_confirmed(house: House) -> None:
    two = pair(house)
    await two.send_all(*map(str, range(12)))
    async with opened(two.bob, window=5) as box:
        first = await some(box, 5)
        assert box.statistics()["buffered"] == 0
        await box.confirm(first[4])
        assert bodies(await some(box, 1)) == ["5"]


async def test_mailbox_continues_after_a_restart_of_the_relay(house: House) -> None:
    two = pair(house)
    await two.send_all("1", "2", "3")
    async with opened(two.bob) as box:
        first = await some(box, 3)
        await box.confirm(first[0])
        await house.down()
        await house.up()
        again = await some(box, 2)
        assert bodies(again) == ["2", "3"]
        assert [delivery.attempt for delivery in again] == [2, 2]
        assert {delivery.was_stored for delivery in again} == {True}
        await two.send_all("4")
        assert bodies(await some(box, 1)) == ["4"]


async def test_confirmation_made_while_the_relay_is_down_counts_and_nothing_is_delivered_twice(house: House) -> None:
    two = pair(house)
    ids = await two.send_all("1", "2")
    async with opened(two.bob) as box:
        first = await some(box, 2)
        await house.down()
        confirming = asyncio.ensure_future(box.confirm(*first))
        await house.up()
        receipt = await asyncio.wait_for(confirming, 20)
        assert set(receipt.confirmed) == set(ids)
        await two.send_all("3")
        assert bodies(await some(box, 1)) == ["3"]
    assert await two.states(*ids) == ["confirmed", "confirmed"]


async def test_sender_that_was_offline_gets_the_confirmations_later(house: House) -> None:
    two = pair(house)
    ids = await two.send_all("1", "2", "3")
    await two.alice.close()
    async with opened(two.bob) as box:
        await box.confirm(*await some(box, 3))
    alice = house.client(two.alice.key)
    async with opened(alice) as box:
        confirmed = await take(box.confirmed(), 3)
    assert [each.id for each in confirmed] == ids
    assert {(each.reader, each.was_stored) for each in confirmed} == {(two.bob.key.node, True)}


async def test_online_sender_gets_confirmations_by_callback(house: House) -> None:
    two = pair(house)
    confirmed: list[Confirmed] = []
    async with opened(two.alice, on_confirmed=confirmed.extend), opened(two.bob) as box:
        ids = await two.send_all("1", "2")
        await box.confirm(*await some(box, 2))
        await until(lambda: len(confirmed) == 2)
    assert [each.id for each in confirmed] == ids


async def test_rejected_message_is_parked_with_its_reason(house: House) -> None:
    two = pair(house)
    ids = await two.send_all("poison", "good")
    async with opened(two.bob) as box:
        poison, good = await some(box, 2)
        assert await box.reject(poison, "cannot be read") is True
        assert await box.reject(poison, "again") is False
        await box.confirm(good)
    assert await two.states(*ids) == ["rejected", "confirmed"]
    assert (await two.alice.message(ids[0])).deliveries[0].reason == "cannot be read"


async def test_ids_of_one_sender_share_a_signature(house: House) -> None:
    two, carol = pair(house), house.client()
    ids = await two.send_all(*map(str, range(120)))
    await carol.send(two.bob.key.node, "from carol")
    confirmed: list[Confirmed] = []
    async with opened(two.alice, on_confirmed=confirmed.extend), opened(two.bob, window=200) as box:
        await box.confirm(*await some(box, 121))
        await until(lambda: len(confirmed) == 120)
    assert [each.id for each in confirmed] == ids
    sizes = [len(event.values("e")) for event in {each.event.id: each.event for each in confirmed}.values()]
    assert sizes == [50, 50, 20]


async def test_receipt_of_a_second_confirmation_says_duplicate(house: House) -> None:
    two = pair(house)
    await two.send_all("1")
    async with opened(two.bob) as box:
        (delivery,) = await some(box, 1)
        assert (await box.confirm(delivery)).confirmed == (delivery.id,)
        second = await box.confirm(delivery)
        assert (second.confirmed, second.ignored) == ((), {delivery.id: "duplicate"})


async def test_newer_mailbox_of_the_node_ends_the_older_one_which_does_not_compete(house: House) -> None:
    two = pair(house)
    older = await two.bob.receive()
    async with opened(house.client(two.bob.key)) as newer:
        with pytest.raises(Refused) as refused:
            await asyncio.wait_for(anext(older), 20)
        assert refused.value.code == "mailbox_replaced"
        await two.bob.publish("the connection itself goes on", kind=1)
        await two.send_all("1")
        assert bodies(await some(newer, 1)) == ["1"]


async def test_mailbox_that_a_late_connection_of_the_same_client_replaces_goes_on(house: House) -> None:
    two = pair(house)
    assert house.server is not None
    async with opened(two.bob) as box:
        house.server.context.engine.sessions.end_replaced("main", two.bob.key.node, box.instance)
        await two.send_all("1")
        assert bodies(await some(box, 1)) == ["1"]
        assert two.bob.statistics()["connections"] == 2


async def test_late_confirmation_of_a_replaced_mailbox_counts(house: House) -> None:
    two = pair(house)
    (message,) = await two.send_all("1")
    older = await two.bob.receive()
    (delivery,) = await some(older, 1)
    async with opened(house.client(two.bob.key)):
        with pytest.raises(PosthouseError):
            await asyncio.wait_for(anext(older), 20)
        assert (await asyncio.wait_for(older.confirm(delivery), 20)).confirmed == (message,)


async def test_two_mailboxes_of_a_node_coexist_where_that_is_allowed(tmp_path: Path) -> None:
    settings = DeliverySettings(policy=ConnectionPolicy.ALLOW_CONCURRENT)
    async with open_house(tmp_path, deliveries=settings) as house:
        two = pair(house)
        async with opened(two.bob) as one, opened(house.client(two.bob.key)) as other:
            await two.send_all("both")
            assert bodies(await some(one, 1)) == bodies(await some(other, 1)) == ["both"]


async def test_following_events_with_the_same_key_does_not_disturb_the_mailbox(house: House) -> None:
    two = pair(house)
    async with opened(two.bob) as box:
        tail = house.client(two.bob.key)
        subscription = await tail.subscribe({"kinds": [1000]})
        await subscription.wait_live()
        await two.send_all("1")
        assert [tail.open(each.event) for each in await take(subscription, 1)] == ["1"]
        (delivery,) = await some(box, 1)
        assert (await box.confirm(delivery)).confirmed == (delivery.id,)
        assert two.bob.statistics()["connections"] == 1


async def test_closed_mailbox_leaves_the_rest_at_the_relay(house: House) -> None:
    two = pair(house)
    ids = await two.send_all("1", "2", "3")
    async with opened(two.bob) as box:
        box.confirm((await some(box, 3))[0])
    assert await box.take() == []
    await two.send_all("4")
    assert (await two.states(*ids))[0] == "confirmed"
    async with opened(two.bob) as box:
        assert box.waiting in (0, 3)
        assert bodies(await some(box, 3)) == ["2", "3", "4"]


async def test_client_has_one_mailbox_at_a_time(house: House) -> None:
    two = pair(house)
    async with opened(two.bob):
        with pytest.raises(Refused) as refused:
            await two.bob.receive()
        assert refused.value.code == "mailbox_open"
    async with opened(two.bob):
        pass


async def test_mailbox_in_a_mesh_without_read_access_is_refused(house: House) -> None:
    two = pair(house)
    await two.alice.meshes.create("closed", name="alice")
    with pytest.raises(Refused) as refused:
        await asyncio.wait_for(two.bob.receive("closed"), 20)
    assert refused.value.code in ("not_member", "mesh_unknown")


async def test_roster_shows_online_members_and_presence_reports_changes(house: House) -> None:
    two = pair(house)
    seen: list[Presence] = []
    await two.bob.publish('{"status": "working"}', kind=10002)
    async with opened(two.alice, on_presence=seen.append) as box:
        async with opened(two.bob):
            await until(lambda: Presence(two.bob.key.node, True) in seen)
            assert box.roster[two.bob.key.node].online
        await until(lambda: Presence(two.bob.key.node, False) in seen)
        assert not box.roster[two.bob.key.node].online
    async with opened(two.bob), opened(house.client(two.alice.key)) as box:
        entry = box.roster[two.bob.key.node]
        assert (entry.online, entry.status) == (True, "working")


async def test_roster_follows_the_agents_of_other_members_over_reconnects(house: House) -> None:
    two = pair(house)
    bob = two.bob.key.node
    async with opened(two.alice) as box, opened(two.bob) as other:
        other.set_agents(["claude"])
        await until(lambda: bob in box.roster and box.roster[bob].online_agents == ("claude",))
        await two.bob.publish('{"agents": [{"name": "claude", "summary": "reviews"}]}', kind=10002)
        await until(lambda: box.roster[bob].agents == (AgentProfile("claude", summary="reviews"),))
        async with opened(house.client(two.alice.key)) as newer:  # the first reader of alice is replaced
            assert newer.roster[bob].agents == (AgentProfile("claude", summary="reviews"),)
            assert newer.roster[bob].online_agents == ("claude",)


async def test_reader_that_confirms_nothing_loses_its_connection_and_gets_a_second_delivery(tmp_path: Path) -> None:
    async with open_house(tmp_path, deliveries=DeliverySettings(confirm_timeout_s=0.2)) as house:
        two = pair(house)
        await two.send_all("1")
        async with opened(two.bob) as box:
            (first,) = await some(box, 1)
            (second,) = await some(box, 1)
            assert (first.id, first.attempt, second.id, second.attempt) == (first.id, 1, first.id, 2)
            assert (await box.confirm(second)).confirmed == (first.id,)


async def test_reader_without_verification_gets_the_same_messages(house: House) -> None:
    two = pair(house, options=replace(QUICK, is_verifying=False))
    ids = await two.send_all(*map(str, range(30)))
    async with opened(two.bob) as box:
        taken = await some(box, 30)
        await box.confirm(*taken)
    assert bodies(taken) == [str(number) for number in range(30)]
    assert set(await two.states(*ids)) == {"confirmed"}


async def test_messages_travel_over_tls(tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "127.0.0.1")
    protection = Protection(tls_cert=made.cert, tls_key=made.key, has_admin=True)
    options = replace(QUICK, tls_ca=tmp_path / "authority.pem")
    async with open_house(tmp_path, protection=protection) as house:
        url = house.url.replace("http://", "https://")
        alice, bob = (Client(url, NodeKey.generate(), pins=Pins(None), options=options) for _ in range(2))
        async with alice, bob:
            for number in range(120):
                await alice.send(bob.key.node, str(number))
            async with opened(bob, window=60) as box:
                seen: list[str] = []
                while len(seen) < 120:
                    (delivery,) = await some(box, 1)
                    seen.append(delivery.body)
                    box.confirm(delivery)
    assert seen == [str(number) for number in range(120)]
