"""A process that writes to a store as fast as it can and tells each answer: ``ref seq``, one line each.

    python -m tests.faults.store_worker PATH PREFIX [store|direct] [honest|hasty] [limit]

`hasty` is the control: it tells an item as soon as it is submitted, before it is durable.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from posthouse.journal.store import DirectStore, Store
from posthouse.model.clock import SystemClock
from posthouse.model.errors import Fatal
from tests.journal.facts import note

CALLERS = 32
ENDLESS = 10**9


def tell(ref: str, seq: int) -> None:
    os.write(1, f"{ref} {seq}\n".encode())


def broken(failure: Fatal) -> None:
    raise SystemExit(str(failure))


async def write_together(path: Path, prefix: str, *, hasty: bool, limit: int) -> None:
    store = Store(path, (), SystemClock())
    left = limit

    async def call(caller: int) -> None:
        nonlocal left
        n = 0
        while left > 0:
            left -= 1
            n += 1
            ref = f"{prefix}-{caller}-{n}"
            answer = store.writer.submit(note(ref, padding=200))
            if hasty:
                tell(ref, 0)
                await answer
            else:
                tell(ref, await answer)

    await asyncio.gather(*(call(caller) for caller in range(CALLERS)))
    store.close()


def write_directly(path: Path, prefix: str, *, limit: int) -> None:
    store = DirectStore(path, (), SystemClock(), on_fatal=broken)
    for n in range(limit):
        tell(f"{prefix}-0-{n}", store.writer.run(note(f"{prefix}-0-{n}", padding=200)))
    store.close()


def main() -> None:
    path, prefix, kind, manner, limit = [*sys.argv[1:], *["store", "honest", str(ENDLESS)][len(sys.argv) - 3 :]]
    if kind == "direct":
        write_directly(Path(path), prefix, limit=int(limit))
    else:
        asyncio.run(write_together(Path(path), prefix, hasty=manner == "hasty", limit=int(limit)))


if __name__ == "__main__":
    main()
