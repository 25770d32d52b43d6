"""Chaos between hosts: mail of agents arrives exactly once, in order, with true receipts, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from posthouse.client.daemon import InboxItem, OutboxRow
from tests.faults.agent_process import Shown
from tests.faults.audited import audit_findings
from tests.faults.campaign import chance, rounds
from tests.faults.daemon_campaign import AGENTS, HOSTS, Agent, Campaign, Ledger, body_of
from tests.faults.daemon_checker import check_campaign
from tests.faults.host_faults import small_disks

pytestmark = [pytest.mark.campaign, pytest.mark.xdist_group("daemon-faults")]
PATIENCE_S = 600


def relay_check(campaign: Campaign) -> dict[str, Any]:
    """Run `posthouse relay check` on the store of the campaign's relay, which has ended."""
    command = [sys.executable, "-m", "posthouse.cli.main", "relay", "check", "--json"]
    done = subprocess.run(
        [*command, "--data-dir", str(campaign.relay.data_dir)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"POSTHOUSE_HOME": str(campaign.relay.home)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[tuple[Path, bool]]:
    """A folder in which every store has a small disk, if this process may mount one."""
    with small_disks(tmp_path, ("r", *(host[0] for host in HOSTS))) as has_small_disks:
        yield tmp_path, has_small_disks


async def test_mail_of_agents_arrives_once_in_order_with_true_receipts_whatever_fails(
    crowded: tuple[Path, bool],
) -> None:
    sends, faults = rounds(8, 240), rounds(4, 60)
    folder, has_small_disks = crowded
    campaign = Campaign(folder, chance("daemons"), has_small_disks=has_small_disks)
    async with asyncio.timeout(PATIENCE_S), campaign.running():
        listening = [asyncio.create_task(campaign.listen(Agent(host, "http"))) for host in HOSTS]
        watching = asyncio.create_task(campaign.watch())
        async with asyncio.TaskGroup() as work:
            for agent in AGENTS:
                work.create_task(campaign.send_all(agent, sends))
            work.create_task(campaign.burn(faults, every=len(AGENTS) * sends // (faults + 1)))
        await campaign.settle()
        for task in (watching, *listening):
            task.cancel()
        await asyncio.gather(watching, *listening, return_exceptions=True)
    ledger = campaign.ledger
    assert check_campaign(ledger) == [], (ledger.faults, ledger.unsettled)
    assert {len(bodies) for bodies in ledger.accepted.values()} == {sends}
    assert len(ledger.faults) == faults
    assert ledger.refusals["daemon_unreachable"] > 0, "no answer was lost"
    assert relay_check(campaign)["findings"] == []
    assert audit_findings(*campaign.stores()) == []


async def test_control_a_sender_that_uses_a_new_id_for_each_try_is_read_twice(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, chance("control naive"))
    async with asyncio.timeout(PATIENCE_S), campaign.running():
        await campaign.send_all(AGENTS[0], 20, is_naive=True)
        await campaign.settle()
    assert "twice" in kinds(check_campaign(campaign.ledger))


async def test_control_an_answer_before_the_commit_loses_what_it_promised(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, chance("control hasty"))
    async with asyncio.timeout(PATIENCE_S), campaign.running():
        await campaign.send_all(AGENTS[0], 20, "hasty")
        await campaign.restart_daemon(AGENTS[0].host)
        await campaign.settle()
    assert kinds(check_campaign(campaign.ledger)) == {"lost", "undone"}


def kinds(findings: list[str]) -> set[str]:
    return {finding.partition(":")[0] for finding in findings}


def kept_ledger() -> Ledger:
    """Two messages of one sender to one reader, as they should be."""
    sender, reader = Agent("north", "cli"), Agent("south", "py")
    bodies = [body_of(sender, reader, number) for number in range(2)]
    ledger = Ledger(accepted={sender: list(bodies)}, inbox={agent: [] for agent in AGENTS})
    ledger.inbox[reader] = [
        InboxItem(body, body, body, "main", None, "n", None, body, None, "", None, "seen") for body in bodies
    ]
    lines: list[list[Shown] | str] = ["life"]
    for body in bodies:
        lines += [[Shown(body, body, False)], "done"]
    ledger.told = {reader: lines}
    ledger.heard = {reader: list(bodies)}
    ledger.outbox = {
        "north": [OutboxRow(body, body, "done", 1, "", to_agent="py", state="read") for body in bodies],
        "south": [],
    }
    return ledger


def lose(ledger: Ledger) -> None:
    del ledger.inbox[Agent("south", "py")][1]


def double(ledger: Ledger) -> None:
    ledger.inbox[Agent("south", "py")] *= 2


def show_again(ledger: Ledger) -> None:
    lines = ledger.told[Agent("south", "py")]
    lines.append(lines[1])


def show_none(ledger: Ledger) -> None:
    ledger.told[Agent("south", "py")] = ["life"]


def swap(ledger: Ledger) -> None:
    ledger.inbox[Agent("south", "py")].reverse()


def unread(ledger: Ledger) -> None:
    items = ledger.inbox[Agent("south", "py")]
    items[0] = msgspec.structs.replace(items[0], seen_at=None)


def forget(ledger: Ledger) -> None:
    del ledger.outbox["north"][0]


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lose, "lost"),
        (double, "twice"),
        (show_again, "shown twice"),
        (show_none, "not shown"),
        (swap, "disordered"),
        (unread, "receipt"),
        (forget, "undone"),
    ],
)
def test_control_the_checker_finds_what_is_planted(plant: Callable[[Ledger], None], found: str) -> None:
    ledger = kept_ledger()
    assert check_campaign(ledger) == []
    plant(ledger)
    assert found in kinds(check_campaign(ledger))
