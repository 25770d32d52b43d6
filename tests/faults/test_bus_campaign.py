"""Nothing that was published is lost, whoever is killed; and the checker finds a loss when there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from posthouse import Bus
from posthouse.model.envelope import Envelope
from tests.bus.mailboxes import Mailbox
from tests.faults.bus_campaign import PUBLISHERS, Campaign
from tests.faults.bus_checker import findings
from tests.faults.bus_terms import LIMITS, SUBJECT, append_line, lines_of
from tests.faults.campaign import chance, rounds

MESSAGES = rounds(400, 5_000)
KILLS = rounds(6, 60)


@pytest.mark.campaign
@pytest.mark.xdist_group("bus-campaign")
async def test_every_published_message_is_handled_whoever_is_killed(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, MESSAGES, KILLS, chance("bus"))
    await campaign.run()
    assert await findings(tmp_path, PUBLISHERS) == [], f"after {campaign.deaths} deaths"
    assert campaign.deaths >= KILLS // 2
    assert sum(len(lines_of(campaign.ledger(name))) for name in PUBLISHERS) >= MESSAGES


@pytest.mark.campaign
@pytest.mark.xdist_group("bus-campaign")
async def test_every_message_to_a_group_of_processes_is_handled_whoever_is_killed(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, MESSAGES, KILLS, chance("bus groups"), ("server", "second", "third"), "workers")
    await campaign.run()
    assert await findings(tmp_path, PUBLISHERS) == [], f"after {campaign.deaths} deaths"
    assert campaign.deaths >= KILLS // 2


async def peaceful(folder: Path, count: int = 20) -> None:
    """A campaign without deaths, in this process: what the checker must find nothing wrong with."""
    ledgers = {
        name: os.open(folder / f"{name}.ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in ("one", "server")
    }

    async def handle(envelope: Envelope) -> None:
        append_line(ledgers["server"], f"{envelope.payload['n']} {envelope.id}")

    async with Bus(folder / "bus", reliability=LIMITS) as bus:
        await bus.register_endpoint(SUBJECT, owner="campaign")
        for number in range(count):
            result = await bus.publish(SUBJECT, {"by": "one", "n": number}, from_="campaign.one")
            append_line(ledgers["one"], f"{number} {result.message_id}")
        await lose_one_if_asked(folder)
        await bus.subscribe(SUBJECT, handle)
        from tests.bus.waiting import eventually

        await eventually(lambda: Mailbox(folder / "bus", SUBJECT).depth == 0)
    for fd in ledgers.values():
        os.close(fd)


async def lose_one_if_asked(folder: Path) -> None:
    """Plant a loss: one stored message vanishes before anybody handled it."""
    if (folder / "lose").exists():
        box = Mailbox(folder / "bus", SUBJECT)
        (box.path / "new" / box.new[3]).unlink()


async def test_checker_finds_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    await peaceful(tmp_path)
    assert await findings(tmp_path, ("one",)) == []


async def test_checker_finds_a_message_whose_file_vanished(tmp_path: Path) -> None:
    (tmp_path / "lose").touch()
    await peaceful(tmp_path)
    lost = lines_of(tmp_path / "one.ledger")[3][1]
    assert f"published but never handled: {lost}" in await findings(tmp_path, ("one",))


async def test_checker_finds_a_publish_that_the_journal_does_not_tell(tmp_path: Path) -> None:
    await peaceful(tmp_path)
    fd = os.open(tmp_path / "one.ledger", os.O_WRONLY | os.O_APPEND)
    append_line(fd, "99 01ARZ3NDEKTSV4RRFFQ69G5FAV")
    os.close(fd)
    found = await findings(tmp_path, ("one",))
    assert "no bus.published record: 01ARZ3NDEKTSV4RRFFQ69G5FAV" in found


async def test_checker_finds_mail_that_was_left_behind(tmp_path: Path) -> None:
    await peaceful(tmp_path)
    async with Bus(tmp_path / "bus", reliability=LIMITS) as bus:
        await bus.publish(SUBJECT, {"n": 1}, from_="campaign.one")
    assert any("files left in new" in finding for finding in await findings(tmp_path, ("one",)))
