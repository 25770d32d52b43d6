"""Run one command of the user: with a time limit, in its own session, without the daemon's identity.

After its time limit the whole group of processes is killed. The output is discarded, because it may hold text of
messages. A daemon that an agent started has that agent's environment: none of it reaches commands, which act for other
agents.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from posthouse.model.address import AGENT_ENV
from posthouse.model.clock import Clock
from posthouse.model.limits import MILLISECOND_NS

log = structlog.get_logger(__name__)
SHELL = "/bin/sh"
_TERM_S = 2.0
#: set by the session of a coding agent for the processes that it starts
_SESSION_VARIABLES = frozenset(
    {
        AGENT_ENV,
        "CLAUDECODE",
        "CLAUDE_CODE_CHILD_SESSION",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_MESSAGING_SOCKET",
        "CLAUDE_CODE_MESSAGING_TOKEN",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_CODE_SSE_PORT",
        "CLAUDE_ENV_FILE",
        "CLAUDE_PID",
    }
)


class Ended(NamedTuple):
    """How a command ended."""

    #: exit code; minus the signal that ended it
    exit: int
    ms: int
    is_timeout: bool


async def run_command(argv: Sequence[str], env: Mapping[str, str], timeout_s: float, clock: Clock) -> Ended:
    """Run a command to its end or its time limit."""
    started_ns = clock.boot_ns()
    inherited = {name: value for name, value in os.environ.items() if name not in _SESSION_VARIABLES}
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=inherited | dict(env),
            cwd=Path.home(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as failure:
        log.warning("command_not_started", command=argv[0], reason=failure.strerror)
        return Ended(127, 0, False)
    is_timeout = False
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        is_timeout = True
    finally:
        await _end_group(process)
    code = process.returncode
    return Ended(127 if code is None else code, (clock.boot_ns() - started_ns) // MILLISECOND_NS, is_timeout)


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Kill the remaining processes of the command's group."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TERM_S):
                await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
