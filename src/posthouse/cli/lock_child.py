"""The command that `posthouse lock run` starts: a process group that ends with the lock, or with this process.

SIGTERM, SIGINT and SIGHUP are forwarded to the group; when it has ended the lock is released. If this process is
killed, Linux kills the command too (lock_exec). While it runs, the command owns the terminal, if there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from posthouse.model.errors import error

TOKEN_ENV = "POSTHOUSE_FENCING_TOKEN"
RESOURCE_ENV = "POSTHOUSE_LOCK_RESOURCE"
_WRAPPER = Path(__file__).with_name("lock_exec.py")
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def run_command(command: Sequence[str], resource: str, token: int, *, grace_s: float) -> int:
    """Run a command and return its exit code; on cancellation end the command and its group first."""
    environment = os.environ | {TOKEN_ENV: str(token), RESOURCE_ENV: resource}
    failures, pipe = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_WRAPPER), str(os.getpid()), str(pipe), *command),
            env=environment,
            process_group=0,
            pass_fds=(pipe,),
        )
    finally:
        os.close(pipe)
    with _forward_signals(process.pid), _lend_terminal(process.pid):
        try:
            code = await process.wait()
        except BaseException:
            await _end(process, grace_s)
            raise
    failure = os.read(failures, 16)  # does not block: the other end was closed when the command began, or ended
    if failure:
        text = f"{command[0]} cannot be started: {os.strerror(int(failure))}"
        raise error("usage", text=text, hint="Check the name of the program, and the PATH.")
    return code if code >= 0 else 128 - code


async def _end(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """End the whole group: send SIGTERM, and SIGKILL after the grace period, even if cancelled again."""
    _signal_group(process.pid, signal.SIGTERM)
    _signal_group(process.pid, signal.SIGCONT)  # a stopped process gets SIGTERM only once it continues
    ended = asyncio.ensure_future(_wait_for_group(process))
    try:
        await asyncio.wait((ended,), timeout=grace_s)  # asyncio.timeout might not expire inside a cancellation
    finally:
        ended.cancel()
        _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


async def _wait_for_group(process: asyncio.subprocess.Process) -> None:
    """Wait until the command and its whole process group have ended."""
    await process.wait()
    while _signal_group(process.pid, 0):  # noqa: ASYNC110 - the kernel does not report the end of a group
        await asyncio.sleep(0.005)


def _signal_group(group: int, number: int) -> bool:
    """Signal a process group; return False if it does not exist."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def _forward_signals(group: int) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _FORWARDED:
        loop.add_signal_handler(number, _signal_group, group, number)
    try:
        yield
    finally:
        for number in _FORWARDED:
            loop.remove_signal_handler(number)


def _is_in_foreground(terminal: int) -> bool:
    """Return False for a file that is not a terminal, and for a terminal that does not control this process."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def _lend_terminal(group: int) -> Iterator[None]:
    """Make the command the foreground process group, if this process is in the foreground."""
    terminal = sys.stdin.fileno()
    if not _is_in_foreground(terminal):
        yield
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # taking the terminal back would stop this process
    try:
        with contextlib.suppress(OSError):  # the command may have ended already
            os.tcsetpgrp(terminal, group)
        _signal_group(group, signal.SIGCONT)
        yield
    finally:
        os.tcsetpgrp(terminal, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)
