"""The command that `posthouse lock run` starts: a process group that ends with the lock, or with this process.

SIGTERM, SIGINT and SIGHUP are passed on to the group; then the lock is released. If this process is killed, the
kernel kills the command too. The command owns the terminal, if there is one, while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence

from posthouse.model.errors import error

TOKEN_ENV = "POSTHOUSE_FENCING_TOKEN"
RESOURCE_ENV = "POSTHOUSE_LOCK_RESOURCE"
_PR_SET_PDEATHSIG = 1
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def run_command(command: Sequence[str], resource: str, token: int, *, grace_s: float) -> int:
    """Run a command to its end and return its exit code; when cancelled, end it and its group first."""
    environment = os.environ | {TOKEN_ENV: str(token), RESOURCE_ENV: resource}
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, process_group=0, preexec_fn=_die_with_parent
        )
    except OSError as failure:
        raise error("usage", text=f"{command[0]} cannot be started: {failure.strerror}") from failure
    with _passing_signals_on(process.pid), _lending_terminal(process.pid):
        try:
            code = await process.wait()
        except BaseException:
            await _end(process, grace_s)
            raise
    return code if code >= 0 else 128 - code


async def _end(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """End the whole group: SIGTERM, and SIGKILL for what is left after the grace, whatever happens meanwhile."""
    _signal_group(process.pid, signal.SIGTERM)
    _signal_group(process.pid, signal.SIGCONT)  # a stopped command would never hear the first
    gone = asyncio.ensure_future(_gone(process))
    try:
        await asyncio.wait((gone,), timeout=grace_s)  # not asyncio.timeout: within a cancellation it may not end one
    finally:
        gone.cancel()
        _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


async def _gone(process: asyncio.subprocess.Process) -> None:
    """Wait for the end of the command and of everything in its group."""
    await process.wait()
    while _signal_group(process.pid, 0):  # noqa: ASYNC110 - nobody tells when a process group is gone
        await asyncio.sleep(0.005)


def _signal_group(group: int, number: int) -> bool:
    """Signal a process group; tell whether there is one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _passing_signals_on(group: int) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _PASSED_ON:
        loop.add_signal_handler(number, _signal_group, group, number)
    try:
        yield
    finally:
        for number in _PASSED_ON:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _lending_terminal(group: int) -> Iterator[None]:
    """Let the command read from our terminal, if we are the ones who may."""
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        yield
        return
    terminal = sys.stdin.fileno()
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # or taking it back would stop us
    try:
        with contextlib.suppress(OSError):  # the command may have ended already
            os.tcsetpgrp(terminal, group)
        _signal_group(group, signal.SIGCONT)
        yield
    finally:
        os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies; runs in the child, before its program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
