"""The process with the readers, as the measurement drives it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from posthouse.bench.drain.mail import MailIngest
from posthouse.bench.relay.process import RunningRelay

_PATIENCE_S = 300
_MAX_LINE = 1 << 20  # node ids of many readers stand on one line


class Crowd:
    """Readers that come, find a backlog and empty it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def drain(self, sender: MailIngest, readers: int, each: int, window: int) -> float:
        """Queue messages for new readers and return how many per second they confirmed."""
        nodes = (await self._ask(f"{readers} {each} {window}")).split()
        await sender.fill(nodes, each)
        seconds, count, is_in_order = (await self._ask("go")).split()
        if int(count) != readers * each or is_in_order != "1":
            raise RuntimeError(f"{count} of {readers * each} messages came, in order: {is_in_order}")
        return readers * each / float(seconds)

    async def _ask(self, line: str) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        answer = await asyncio.wait_for(self._process.stdout.readline(), _PATIENCE_S)
        if not answer:
            raise RuntimeError("the readers ended")
        return answer.decode().strip()


@asynccontextmanager
async def open_crowd(relay: RunningRelay) -> AsyncIterator[Crowd]:
    """Start the process with the readers."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "posthouse.bench.drain.readers",
        relay.host,
        str(relay.port),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_MAX_LINE,
    )
    try:
        yield Crowd(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
