"""A relay as its own process, started as a user would start it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.relay.edge import PATIENCE_S

COMMAND = (sys.executable, "-m", "posthouse.cli.main", "relay", "up")


@dataclass
class RelayProcess:
    """A running `posthouse relay up --json`."""

    process: asyncio.subprocess.Process
    #: its output when it was ready
    ready: dict[str, Any]

    async def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    async def log(self) -> str:
        """Return the log of a relay that has ended."""
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()


def environment(home: Path) -> dict[str, str]:
    """Return an environment without any configuration of this machine, except where Python finds its modules."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return kept | {"HOME": str(home)}


@asynccontextmanager
async def relay_process(home: Path, *options: str) -> AsyncIterator[RelayProcess]:
    """Run a relay with a home of its own until the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *("--json", *(options if "--listen" in options else ("--listen", "127.0.0.1:0", *options))),
        env=environment(home),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            line = await process.stdout.readline()
        assert line, (await process.communicate())[1]
        yield RelayProcess(process, json.loads(line))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def refused(home: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and problem of a relay that does not start."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "--json",
        *options,
        env=environment(home),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    assert out == b""
    assert process.returncode is not None
    return process.returncode, json.loads(err.splitlines()[-1])
