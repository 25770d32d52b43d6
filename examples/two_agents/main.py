"""Two agents talk on a bus, each in its own process, and the traffic is shown.

Run it with `python examples/two_agents/main.py [DIRECTORY]`; it ends by itself after a few seconds. With a
directory the bus stays there: look at it with `posthouse bus top --dir DIRECTORY`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from posthouse import Bus

AGENT = Path(__file__).with_name("agent.py")
PATIENCE_S = 30


async def start(*command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, *command)


async def converse(folder: Path) -> None:
    """Let the agents talk until the editor has accepted a draft, then take it out of the archive."""
    async with Bus(folder) as bus:
        for role in ("writer", "editor", "archive"):
            await bus.register_endpoint(f"agents.{role}", owner=role)
        agents = [await start(str(AGENT), role, str(folder)) for role in ("editor", "writer")]
        if any(await asyncio.gather(*(asyncio.wait_for(agent.wait(), PATIENCE_S) for agent in agents))):
            raise SystemExit("an agent failed")
        for accepted in await bus.read_inbox("agents.archive"):
            sys.stdout.write(f"accepted: {accepted.payload['content']}\n")
            await bus.ack("agents.archive", accepted.id)
    sys.stdout.flush()  # before the next process writes


async def show_traffic(folder: Path) -> None:
    """Run a command as a user would."""
    top = await start("-m", "posthouse.cli.main", "bus", "top", "--once", "--dir", str(folder))
    await asyncio.wait_for(top.wait(), PATIENCE_S)


async def main(folder: Path) -> None:
    await converse(folder)
    await show_traffic(folder)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            asyncio.run(main(Path(scratch) / "bus"))
