"""Two processes on one bus: jobs wait on disk, and a worker that starts later handles them in order.

Run it with `python examples/two_processes/main.py`. There is no server in between: both processes open the same
data directory.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from posthouse import Bus

WORKER = Path(__file__).with_name("worker.py")


async def main(folder: Path) -> None:
    async with Bus(folder) as bus:
        await bus.register_endpoint("work.jobs", owner="worker")
        for job in ("sweep the floor", "light the fire"):
            await bus.publish("work.jobs", job, from_="work.lead")
        say(f"{len(await bus.read_inbox('work.jobs', 10))} jobs are waiting, no worker is running")

        worker = await asyncio.create_subprocess_exec(sys.executable, str(WORKER), str(folder))
        await bus.publish("work.jobs", "feed the horses", from_="work.lead")
        await bus.publish("work.jobs", "stop", from_="work.lead")
        await asyncio.wait_for(worker.wait(), 30)
        say(f"{len(await bus.read_inbox('work.jobs', 10))} jobs are waiting")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "bus"))
