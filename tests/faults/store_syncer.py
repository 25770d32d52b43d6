"""A process whose disk fails after a number of syncs: ``python -m tests.faults.store_syncer PATH SYNCS``.

It tells each answer, as store_worker does, and would tell "survived" if it outlived the failure.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import structlog

from posthouse.journal.store import Store
from posthouse.model.clock import SystemClock
from tests.faults.failing_vfs import FailingVFS
from tests.faults.store_worker import tell
from tests.journal.facts import note


async def main() -> None:
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    vfs = FailingVFS()
    store = Store(Path(sys.argv[1]), (), SystemClock(), vfs=vfs.name)
    syncs = int(sys.argv[2])
    for n in range(syncs):
        tell(f"good-{n}", await store.writer.run(note(f"good-{n}")))
    vfs.sync_failure = "sync"
    futures = [store.writer.submit(note(f"bad-{n}")) for n in range(10)]
    for n, answer in enumerate(await asyncio.gather(*futures, return_exceptions=True)):
        tell(f"survived-{n}", 0 if isinstance(answer, BaseException) else answer)


if __name__ == "__main__":
    asyncio.run(main())
