"""The worker process: serves `work.jobs` until it receives "stop"."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from posthouse import Bus, Envelope


async def main(folder: Path) -> None:
    stopped = asyncio.Event()

    async def work(job: Envelope) -> None:
        sys.stdout.write(f"worker: {job.payload}\n")
        sys.stdout.flush()
        if job.payload == "stop":
            stopped.set()

    async with Bus(folder) as bus:
        await bus.register_endpoint("work.jobs", owner="worker")
        await bus.subscribe("work.jobs", work)
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
