"""A mailbox that fills gaps: what its queue had no room for comes from the history of the topic."""

from __future__ import annotations

from pathlib import Path

from posthouse.relay.messages.settings import DeliverySettings
from tests.client.house import open_house
from tests.client.messages.pair import bodies, opened, pair, some


async def test_reader_that_was_away_too_long_gets_every_message_of_its_topics(tmp_path: Path) -> None:
    async with open_house(tmp_path, deliveries=DeliverySettings(queue_max=2)) as house:
        two = pair(house)
        await two.alice.meshes.create_topic("main", "news")
        await two.bob.meshes.subscribe("main", "news")
        sent = [await two.alice.send("#news", str(number)) for number in range(60)]
        assert sent[1].not_queued == () and sent[2].not_queued[0].recipient == two.bob.key.node
        async with opened(two.bob, fills_gaps=True) as box:
            found = []
            for _ in range(60):
                (delivery,) = await some(box, 1)
                found.append(delivery)
                box.confirm(delivery)
            await box.flush()
            await two.bob.send("#news", "mine")  # behind it the relay has read that the gap is filled
        assert bodies(found) == [str(number) for number in range(60)]
        assert [each.is_from_history for each in found] == [False] * 2 + [True] * 58
        async with opened(house.client(two.bob.key), fills_gaps=True) as box:
            await two.alice.send("#news", "last")
            assert bodies(await some(box, 1)) == ["last"]


async def test_messages_of_a_blocked_member_do_not_come_from_the_history(tmp_path: Path) -> None:
    async with open_house(tmp_path, deliveries=DeliverySettings(queue_max=1)) as house:
        two, carol = pair(house), house.client()
        await two.alice.meshes.create_topic("main", "news")
        await two.bob.meshes.subscribe("main", "news")
        await two.bob.meshes.block("main", carol.key.node)
        for sender, body in ((two.alice, "1"), (carol, "noise"), (two.alice, "2"), (two.bob, "own"), (carol, "noise")):
            await sender.send("#news", body)
        async with opened(two.bob, fills_gaps=True) as box:
            (first,) = await some(box, 1)
            box.confirm(first)
            (second,) = await some(box, 1)
            box.confirm(second)
        assert bodies([first, second]) == ["1", "2"]


async def test_reader_that_does_not_ask_for_it_gets_its_queue_only(tmp_path: Path) -> None:
    async with open_house(tmp_path, deliveries=DeliverySettings(queue_max=1)) as house:
        two = pair(house)
        await two.alice.meshes.create_topic("main", "news")
        await two.bob.meshes.subscribe("main", "news")
        for body in ("1", "lost"):
            await two.alice.send("#news", body)
        async with opened(two.bob) as box:
            box.confirm(*await some(box, 1))
            await box.flush()
            await two.alice.send("#news", "3")
            assert bodies(await some(box, 1)) == ["3"]
