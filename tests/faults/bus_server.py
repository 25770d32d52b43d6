"""The server of the bus campaign: handles what arrives and writes each id down; ends when its input closes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from posthouse import Bus
from posthouse.model.envelope import Envelope
from tests.faults.bus_terms import LIMITS, SUBJECT, append_line


async def main(root: Path, ledger: Path, group: str) -> None:
    out = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def handle(envelope: Envelope) -> None:
        append_line(out, f"{envelope.payload['n']} {envelope.id}")

    async with Bus(root, reliability=LIMITS) as bus:
        await bus.register_endpoint(SUBJECT, owner="campaign")
        await bus.subscribe(SUBJECT, handle, group=group or None, concurrency=2 if group else 1)
        await asyncio.to_thread(sys.stdin.read)
    os.close(out)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
