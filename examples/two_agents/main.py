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
    """Let the agents talk until the writer has no drafts left."""
    async with Bus(folder) as bus:
        for subject in ("agents.editor", "agents.archive"):
            await bus.register_endpoint(subject, owner=subject.removeprefix("agents."))
        editor, writer = [await start(str(AGENT), role, str(folder)) for role in ("editor", "writer")]
        try:
            if await asyncio.wait_for(writer.wait(), PATIENCE_S):
                raise SystemExit("the writer failed")
        finally:
            await bus.publish("agents.editor", "stop", from_="agents.lead")
            await asyncio.wait_for(editor.wait(), PATIENCE_S)


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
