"""kill -9 of Pinch agents and of the relay in the middle of a backlog: nothing lost, in order, confirmed once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.campaign import chance, rounds
from tests.faults.pinch_campaign import Campaign

pytestmark = pytest.mark.campaign

PER_FAULT = 120


async def begin(campaign: Campaign, faults: int) -> None:
    """Start the relay and queue a backlog that lasts for all faults."""
    await asyncio.to_thread(campaign.relay.start)
    await campaign.send([f"number {number}" for number in range(PER_FAULT * (faults + 1))])
    await campaign.start_reader()


async def end(campaign: Campaign) -> list[str]:
    """Let the sender hear of everything; return what is wrong."""
    await campaign.hear()
    await campaign.kill_reader()
    await asyncio.to_thread(campaign.relay.kill)
    return campaign.findings()


async def test_killed_relay_loses_nothing_of_a_pinch_backlog(tmp_path: Path) -> None:
    campaign, kills, luck = Campaign(tmp_path), rounds(3, 40), chance("pinch relay")
    try:
        await begin(campaign, kills)
        for _ in range(kills):
            await campaign.await_lines(luck.randint(1, PER_FAULT // 2))
            await campaign.kill_relay()
        assert await end(campaign) == []
    finally:
        await campaign.kill_reader()
        campaign.relay.kill()
    assert len({place for place, _text in campaign.seen}) > 1, "the reader was never interrupted"


async def test_killed_agent_loses_nothing_of_a_pinch_backlog(tmp_path: Path) -> None:
    campaign, kills, luck = Campaign(tmp_path), rounds(3, 40), chance("pinch agent")
    try:
        await begin(campaign, kills)
        for _ in range(kills):
            await campaign.await_lines(luck.randint(1, PER_FAULT // 2))
            await campaign.kill_reader()
            await campaign.start_reader()
        assert await end(campaign) == []
    finally:
        await campaign.kill_reader()
        campaign.relay.kill()
    assert len({place for place, _text in campaign.seen}) > 1, "the reader was never interrupted"


async def test_control_an_agent_that_confirms_before_it_writes_down_loses_some(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, manner="hasty")
    try:
        await begin(campaign, 1)
        await campaign.await_lines(20)
        await campaign.kill_reader()
        await campaign.hear_waiting()
    finally:
        await campaign.kill_reader()
        campaign.relay.kill()
    assert set(campaign.confirmed) - set(campaign.texts), "everything confirmed was written down"
