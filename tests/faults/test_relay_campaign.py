"""kill -9 of the relay under load: what was answered is there, nothing is there twice, subscribers miss nothing."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from posthouse.client import Client, Published, Subscription
from tests.faults.campaign import chance, rounds
from tests.faults.relay_between import between
from tests.faults.relay_campaign import (
    BURST,
    KIND,
    Campaign,
    publish_all,
    publish_with_late_answers,
    subscribe_all,
    subscribe_in_turns,
)
from tests.faults.relay_checker import check_campaign

pytestmark = [pytest.mark.campaign, pytest.mark.xdist_group("relay-faults")]


async def test_killed_relay_loses_and_repeats_nothing_and_subscribers_miss_nothing(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, chance("relay"), kills=rounds(3, 20))
    ledger = await campaign.run(
        [publish_all, publish_with_late_answers],
        [partial(subscribe_all, name="steady"), partial(subscribe_in_turns, name="in turns")],
    )
    assert ledger.kills == rounds(3, 20)
    assert len(ledger.answered) == len(ledger.meant) > BURST * ledger.kills
    assert ledger.duplicates > 0, "no kill found an event that was stored and not answered"
    assert check_campaign(campaign.relay.data_dir, ledger) == []


async def test_control_a_subscriber_without_its_cursor_misses_events(tmp_path: Path) -> None:
    async def follow_live_only(campaign: Campaign) -> None:
        seen = campaign.ledger.seen.setdefault("live only", [])
        while not campaign.is_over:
            async with campaign.client() as client:
                await client.connect(is_patient=True)
                subscription = await client.subscribe({"kinds": [KIND]}, limit=0)
                while client.statistics()["connections"] < 2 and not campaign.is_over:
                    await _take(subscription, seen)

    campaign = Campaign(tmp_path, chance("control cursor"), kills=2)
    ledger = await campaign.run([publish_all], [follow_live_only])
    findings = check_campaign(campaign.relay.data_dir, ledger)
    assert [finding.partition(":")[0] for finding in findings] == ["missed"], findings


async def test_control_a_publisher_that_signs_anew_stores_twice(tmp_path: Path) -> None:
    async def publish_anew(campaign: Campaign) -> None:
        async with between(campaign.relay.url, "late") as place:
            campaign.is_ripe = lambda: place.held > 0
            for number in count(0, BURST):
                if campaign.is_over:
                    return
                await _insist(campaign, place.url, [f"anew {each}" for each in range(number, number + BURST)])

    campaign = Campaign(tmp_path, chance("control sign"), kills=3)
    ledger = await campaign.run([publish_anew, publish_all])
    findings = check_campaign(campaign.relay.data_dir, ledger)
    assert "twice" in {finding.partition(":")[0] for finding in findings}, findings


async def test_control_a_relay_that_answers_before_it_commits_loses_events(tmp_path: Path) -> None:
    async def publish_hastily(campaign: Campaign) -> None:
        async with between(campaign.relay.url, "hasty") as place:
            await publish_all(campaign, place.url)

    campaign = Campaign(tmp_path, chance("control hasty"), kills=3)
    ledger = await campaign.run([publish_hastily])
    findings = check_campaign(campaign.relay.data_dir, ledger)
    assert "lost" in {finding.partition(":")[0] for finding in findings}, findings[:3]


async def _take(subscription: Subscription, seen: list[tuple[int, str]]) -> None:
    try:
        received = await asyncio.wait_for(anext(subscription), 0.2)
    except TimeoutError:
        return
    assert received.seq is not None
    seen.append((received.seq, received.event.id))


async def _insist(campaign: Campaign, url: str, contents: list[str]) -> None:
    """Publish contents until each is answered, signing it again each time the connection was lost."""
    left = contents
    while left:
        async with campaign.client(url) as client:
            await client.connect(is_patient=True)
            events = [client.sign(content, kind=KIND) for content in left]
            tasks = [asyncio.create_task(client.publish_event(event)) for event in events]
            await _until_down(client, tasks)
            answered = [not task.cancelled() and task.exception() is None for task in tasks if task.done()]
            left = [content for content, is_there in zip(left, answered, strict=True) if not is_there]


async def _until_down(client: Client, tasks: list[asyncio.Task[Published]]) -> None:
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.002)
        if not client.statistics()["is_up"]:
            for task in tasks:
                task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
