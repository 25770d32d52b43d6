"""Receipts as a program sends and hears them."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from posthouse.client import Receipt
from posthouse.client.stream.connection import Link
from tests.client.house import House
from tests.client.messages.pair import opened, pair, some
from tests.client.waiting import PATIENCE_S, until

AT_MS = 1_763_000_000_000


async def test_receipts_of_one_agent_for_one_sender_leave_under_one_signature(house: House) -> None:
    two = pair(house)
    ids = await two.send_all("1", "2", "3")
    heard: list[Receipt] = []
    async with opened(two.alice, on_receipts=heard.extend), opened(two.bob) as box:
        box.confirm(*await some(box, 3))
        add = partial(two.bob.receipts.add, mesh="main", at_ms=AT_MS, agent="claude")
        futures = [add(id_, two.alice.key.node) for id_ in ids]
        two.bob.receipts.flush()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*futures) == [True, True, True]
        await until(lambda: len(heard) == 3)
    assert [(each.id, each.reader, each.agent, each.state, each.at_ms) for each in heard] == [
        (id_, two.bob.key.node, "claude", "read", AT_MS) for id_ in ids
    ]
    assert len({each.event.id for each in heard}) == 1
    assert (await two.alice.message(ids[0])).deliveries[0].receipt == "read"


async def test_fifty_receipts_leave_without_waiting_for_more(house: House) -> None:
    two = pair(house)
    ids = await two.send_all(*map(str, range(50)))
    await two.bob.connect()
    two.bob.receipts.gather_s = 3600
    futures = [two.bob.receipts.add(id_, two.alice.key.node, mesh="main", at_ms=AT_MS) for id_ in ids]
    async with asyncio.timeout(PATIENCE_S):
        assert all(await asyncio.gather(*futures))


async def test_few_receipts_leave_after_a_while(house: House) -> None:
    two = pair(house)
    (id_,) = await two.send_all("1")
    await two.bob.connect()
    two.bob.receipts.gather_s = 0.01
    async with asyncio.timeout(PATIENCE_S):
        rejected = two.bob.receipts.add(
            id_, two.alice.key.node, mesh="main", at_ms=AT_MS, state="rejected", reason="agent_full"
        )
        assert await rejected
    delivery = (await two.alice.message(id_)).deliveries[0]
    assert (delivery.receipt, delivery.receipt_reason) == ("rejected", "agent_full")


async def test_a_second_receipt_counts_as_sent_and_one_of_a_foreign_message_does_not(house: House) -> None:
    two = pair(house)
    (id_,) = await two.send_all("1")
    await two.bob.connect()
    for expected in (True, True):
        future = two.bob.receipts.add(id_, two.alice.key.node, mesh="main", at_ms=AT_MS)
        two.bob.receipts.flush()
        async with asyncio.timeout(PATIENCE_S):
            assert await future is expected
    foreign = two.bob.receipts.add("0" * 64, two.alice.key.node, mesh="main", at_ms=AT_MS)
    two.bob.receipts.flush()
    async with asyncio.timeout(PATIENCE_S):
        assert await foreign is False


async def test_a_relay_without_the_feature_gets_no_receipt(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    two = pair(house)
    (id_,) = await two.send_all("1")
    await two.bob.connect()
    monkeypatch.setattr(Link, "supports", lambda _link, _feature: False)
    future = two.bob.receipts.add(id_, two.alice.key.node, mesh="main", at_ms=AT_MS)
    two.bob.receipts.flush()
    assert await future is False
    assert (await two.alice.message(id_)).deliveries[0].receipt is None


async def test_receipts_that_still_collect_leave_before_the_client_closes(house: House) -> None:
    two = pair(house)
    (id_,) = await two.send_all("1")
    await two.bob.connect()
    two.bob.receipts.add(id_, two.alice.key.node, mesh="main", at_ms=AT_MS)
    await two.bob.close()
    assert (await two.alice.message(id_)).deliveries[0].receipt == "read"
