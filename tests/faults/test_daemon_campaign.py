"""Chaos between hosts: what got a 2xx is in the reader's inbox exactly once, in order, whatever ended meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.audited import audit_findings
from tests.faults.campaign import chance, rounds
from tests.faults.daemon_campaign import Campaign
from tests.faults.daemon_checker import check_campaign

pytestmark = [pytest.mark.faults, pytest.mark.xdist_group("daemon-faults")]
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


async def test_what_was_accepted_arrives_once_and_in_order_whatever_is_killed_or_cut(tmp_path: Path) -> None:
    sends, faults = rounds(200, 500), rounds(6, 40)
    campaign = Campaign(tmp_path, chance("daemons"))
    async with asyncio.timeout(PATIENCE_S), campaign.running():
        listening = asyncio.create_task(campaign.listen())
        async with asyncio.TaskGroup() as work:
            for name in ("a", "b"):
                work.create_task(campaign.send_all(name, sends))
            work.create_task(campaign.burn(faults, every=2 * sends // (faults + 1)))
        await campaign.settle()
        await campaign.await_heard()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    ledger = campaign.ledger
    assert [len(bodies) for bodies in ledger.accepted.values()] == [sends, sends]
    assert len(ledger.faults) == faults
    assert ledger.repeats > 0, "no send had to be repeated"
    assert check_campaign(ledger) == [], ledger.faults
    assert relay_check(campaign)["findings"] == []
    assert audit_findings(*campaign.stores()) == []


async def test_control_a_program_that_sends_again_under_a_new_id_is_read_twice(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, chance("control naive"))
    async with asyncio.timeout(PATIENCE_S), campaign.running():
        await campaign.send_all("a", 20, is_naive=True)
        await campaign.settle()
    findings = {finding.partition(":")[0] for finding in check_campaign(campaign.ledger)}
    assert findings == {"twice"}


async def test_control_an_answer_before_the_commit_loses_what_it_promised(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, chance("control hasty"))
    async with asyncio.timeout(PATIENCE_S), campaign.running():
        await campaign.send_all("a", 20, "hasty")
        await campaign.restart_daemon("a")
        await campaign.settle()
    findings = {finding.partition(":")[0] for finding in check_campaign(campaign.ledger)}
    assert findings == {"lost"}
