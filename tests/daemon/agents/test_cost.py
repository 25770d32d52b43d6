"""What an agent costs: far less than 1 MB of the daemon's memory, also while it waits for mail."""

from __future__ import annotations

import asyncio
from pathlib import Path

from posthouse.client.daemon import DaemonClient
from tests.faults.daemon_process import DaemonProcess

AGENTS = 60
MIB = 1024 * 1024


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that is in RAM and its own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    private = [line for line in lines if line.startswith("Private_")]
    return sum(int(line.split()[1]) for line in private) * 1024


async def test_an_agent_that_waits_for_mail_costs_less_than_a_megabyte(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "d", "ws://127.0.0.1:9") as daemon:
        pid = int((daemon.directory / "pid").read_text())
        async with DaemonClient(daemon.directory, agent="") as client:
            await client.register("first")
            await client.send("first", "hello")
            before = resident_bytes(pid)
            for number in range(AGENTS):
                await client.register(f"agent-{number}", program="claude-code", summary="reviews pull requests")
            programs = [DaemonClient(daemon.directory, agent=f"agent-{number}") for number in range(AGENTS)]
            waiting = [asyncio.create_task(_wait_once(program)) for program in programs]
            for number in range(AGENTS):
                await client.send(f"agent-{number}", f"mail {number}")
            found = await asyncio.gather(*waiting)
            assert found == [[f"mail {number}"] for number in range(AGENTS)]
            assert (resident_bytes(pid) - before) / AGENTS < MIB


async def _wait_once(program: DaemonClient) -> list[str | None]:
    async with program as daemon:
        return [item.body for item in await daemon.wait(60)]
