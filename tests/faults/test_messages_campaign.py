"""kill -9 of reader and relay, and cut wires, at every point of a backlog: nothing lost, in order, confirmed once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.keys import NodeKey
from tests.faults.campaign import chance, rounds
from tests.faults.messages_campaign import Campaign, Correspondence
from tests.faults.messages_checker import check_messages
from tests.faults.messages_wire import Wire, wire_to

pytestmark = pytest.mark.campaign

LIVE = 5
AHEAD = 500  # several windows, far from the length of a queue
BACKLOG = [f"backlog-{number}" for number in range(1_000)]


async def begin(campaign: Campaign, count: int = len(BACKLOG)) -> None:
    """Start the relay and queue a backlog for a reader that is away."""
    await asyncio.to_thread(campaign.relay.start)
    await campaign.send(BACKLOG[:count])


async def end(campaign: Campaign) -> list[str]:
    """Let the reader finish and the sender hear of it; return what is wrong."""
    await campaign.finish()
    await campaign.hear(campaign.sender_key, len(campaign.ledger.sent))
    await asyncio.to_thread(campaign.relay.kill)
    return check_messages(campaign.relay.data_dir, campaign.ledger)


async def test_killed_reader_loses_nothing_of_a_backlog(tmp_path: Path) -> None:
    campaign, kills = Campaign(tmp_path, chance("messages reader")), rounds(4, 100)
    try:
        await begin(campaign)
        await campaign.start_reader()
        while campaign.ledger.faults < kills:
            if await campaign.await_lines(campaign.chance.randint(1, 60)):
                await campaign.kill_reader()
                campaign.ledger.faults += 1
                await campaign.start_reader()
            else:
                await send_more(campaign)
        assert await end(campaign) == []
    finally:
        await campaign.kill_reader()
        campaign.relay.kill()
    assert any(each.attempt > 1 for each in campaign.ledger.seen), "no kill found a message that was not confirmed"
    backlog = [each.was_stored for each in campaign.ledger.seen if each.body.startswith("backlog")]
    assert set(backlog) == {True}


async def test_killed_relay_loses_nothing_of_a_backlog(tmp_path: Path) -> None:
    campaign, kills = Campaign(tmp_path, chance("messages relay")), rounds(4, 100)
    try:
        await begin(campaign)
        await campaign.start_reader()
        while campaign.ledger.faults < kills:
            if await campaign.await_lines(campaign.chance.randint(1, 60)):
                await campaign.kill_relay()
                campaign.ledger.faults += 1
            else:
                await send_more(campaign)
        assert await end(campaign) == []
    finally:
        await campaign.kill_reader()
        campaign.relay.kill()
    assert len({each.connection for each in campaign.ledger.seen}) > kills // 2, "the reader was hardly interrupted"


async def test_cut_wire_loses_nothing_at_whatever_byte(tmp_path: Path) -> None:
    # a small window makes small frames: only a frame that came whole is progress
    campaign, cuts = Campaign(tmp_path, chance("messages wire"), window=8), rounds(40, 1_000)
    try:
        await begin(campaign)
        async with wire_to("127.0.0.1", campaign.relay.port) as wire:
            campaign.url = wire.url
            await campaign.start_reader()
            while campaign.ledger.faults < cuts:
                if not await cut_once(campaign, wire):
                    await send_more(campaign)
            assert await end(campaign) == []
    finally:
        await campaign.kill_reader()
        campaign.relay.kill()
    assert any(each.attempt > 1 for each in campaign.ledger.seen), "no cut found a message that was not confirmed"


async def test_two_senders_race_a_reader_while_relay_and_wire_end(tmp_path: Path) -> None:
    campaign, faults = Campaign(tmp_path, chance("messages race")), rounds(12, 200)
    keys = [NodeKey.generate(), NodeKey.generate()]
    each = 40 * faults
    try:
        await asyncio.to_thread(campaign.relay.start)
        async with wire_to("127.0.0.1", campaign.relay.port) as wire:
            campaign.url = wire.url
            await campaign.start_reader()
            sending = [
                asyncio.create_task(send_in_bursts(campaign, f"sender{number}", key, each))
                for number, key in enumerate(keys)
            ]
            while campaign.ledger.faults < faults:
                has_more = await campaign.await_lines(campaign.chance.randint(1, 40))
                if not has_more and all(task.done() for task in sending):
                    break
                if has_more:
                    await interrupt(campaign, wire)
            await asyncio.gather(*sending)
            await read_at_the_tail(campaign, keys[0])
            await campaign.finish()
        await campaign.hear(keys[0], each + LIVE)
        await campaign.hear(keys[1], each)
        await asyncio.to_thread(campaign.relay.kill)
        assert check_messages(campaign.relay.data_dir, campaign.ledger) == []
    finally:
        await campaign.kill_reader()
        campaign.relay.kill()
    assert campaign.ledger.faults > 5
    assert not campaign.ledger.seen[-1].was_stored, "what came at the tail is said to have waited"


async def test_control_a_reader_that_confirms_before_it_has_a_message_loses_some(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, chance("messages control"), manner="hasty")
    try:
        await begin(campaign, 200)
        await campaign.start_reader()
        for _ in range(4):
            await campaign.await_lines(20)
            await campaign.kill_reader()
            await campaign.start_reader()
        findings = await end(campaign)
    finally:
        await campaign.kill_reader()
        campaign.relay.kill()
    assert "lost" in {finding.partition(":")[0] for finding in findings}, findings[:3]


def test_control_a_message_handed_out_after_its_confirmation_is_noticed() -> None:
    reading = Correspondence(lambda: "", chance("messages again"))
    told = ["D 1 7 letter 1 1", "C 2 letter", "D 2 7 letter 1 2"]
    reading.take_down(told)
    assert (reading.ledger.again, reading.ledger.overtaken) == ([], ["letter"])
    reading.take_down([*told, "D 3 7 letter 1 3"])
    assert reading.ledger.again == ["letter"]


async def send_more(campaign: Campaign) -> None:
    """Queue more for a reader that has read everything."""
    await campaign.send([f"more-{campaign.ledger.faults}-{number}" for number in range(500)])


async def cut_once(campaign: Campaign, wire: Wire) -> bool:
    """Cut the wire somewhere in what comes next; return False when nothing is left to come."""
    cutting = asyncio.create_task(wire.cut_after(campaign.chance.randint(1, 12_000)))
    while not cutting.done():
        await asyncio.wait((cutting,), timeout=0.3)
        if not cutting.done() and await campaign.is_empty():
            wire.cut()
            await cutting
            return False
    campaign.ledger.faults += 1
    return True


async def interrupt(campaign: Campaign, wire: Wire) -> None:
    """Cut the wire, or now and then kill the relay."""
    if campaign.ledger.faults % 10 == 5:
        await campaign.kill_relay()
    else:
        wire.cut()
    campaign.ledger.faults += 1


async def read_at_the_tail(campaign: Campaign, key: NodeKey) -> None:
    """Send a few messages one by one to a reader that has nothing left to read."""
    for number in range(LIVE):
        while not await campaign.is_empty():  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.01)
        await campaign.send([f"live-{number}"], key)


async def send_in_bursts(campaign: Campaign, name: str, key: NodeKey, count: int) -> None:
    """Send numbered messages of one sender, some at a time, and never so far ahead that the queue would be full."""
    for start in range(0, count, 20):
        await campaign.await_reader(AHEAD)
        await campaign.send([f"{name}-{number}" for number in range(start, start + 20)], key)
