"""A publisher of the bus campaign: sends numbered messages, and writes down each one whose publish returned.

Killed at any moment and started again, it goes on with the numbers that are not in its ledger. A message whose
publish returned but whose line was not written yet is sent again: the campaign allows duplicates, never losses.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from posthouse import Bus
from tests.faults.bus_terms import LIMITS, SUBJECT, append_line, numbers_in

IN_FLIGHT = 8


async def main(root: Path, ledger: Path, name: str, total: int) -> None:
    missing = sorted(set(range(total)) - numbers_in(ledger))
    gate = asyncio.Semaphore(IN_FLIGHT)
    out = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    async with Bus(root, reliability=LIMITS) as bus:

        async def send(number: int) -> None:
            async with gate:
                result = await bus.publish(SUBJECT, {"by": name, "n": number}, from_=f"campaign.{name}")
                if result.delivered_to == 1:
                    append_line(out, f"{number} {result.message_id}")

        await asyncio.gather(*(send(number) for number in missing))
    os.close(out)
    sys.exit(0 if numbers_in(ledger) >= set(range(total)) else 1)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
