"""Servers in the background: start a command as a detached process, and stop a process and wait for its end.

The child runs in its own session with `--json`: one line on its stdout means that it is ready; if it ends before that,
its error on stderr is raised here. A server is stopped with SIGTERM, which lets it commit what it has accepted.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError, error

START_S = 60.0
_LINE_MAX_BYTES = 1 << 16


def start_detached(
    server: str, words: Sequence[str], *, slow: str, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Start `posthouse` with these words and return the object that it prints when it is ready.

    `server` is the noun that errors use, `slow` the code of the error if it does not answer in time.
    """
    import msgspec

    command = [sys.executable, "-m", "posthouse.cli.main", *words]
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as errors:
        try:
            pid = _spawn(command, environ, writing, errors)
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as stdout:
            line = _read_line(stdout, pid, slow)
        if line is None:
            raise _failure(server, os.waitpid(pid, 0)[1], errors)
    value: dict[str, Any] = msgspec.json.decode(line)
    return value


def _spawn(command: Sequence[str], environ: Mapping[str, str], writing: int, errors: IO[bytes]) -> int:
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    actions = [
        (os.POSIX_SPAWN_DUP2, null, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_DUP2, errors.fileno(), 2),
    ]
    try:
        return os.posix_spawn(command[0], list(command), environ, file_actions=actions, setsid=True)
    finally:
        os.close(null)


def _read_line(stdout: IO[bytes], pid: int, slow: str) -> bytes | None:
    """Return the first line of the child, or None if the child ended without one."""
    clock = system_clock()
    end_ns = clock.boot_ns() + round(START_S * 1e9)
    line = b""
    while not line.endswith(b"\n"):
        left_s = (end_ns - clock.boot_ns()) / 1e9
        if left_s <= 0 or not select.select([stdout], [], [], left_s)[0]:
            raise error(slow, seconds=START_S, pid=pid)
        part = stdout.read(_LINE_MAX_BYTES)
        if not part:
            return None
        line += part
    return line


def _failure(server: str, status: int, errors: IO[bytes]) -> PosthouseError:
    import msgspec

    from posthouse.client.failures import error_from

    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    for line in reversed(lines):
        try:
            problem = msgspec.json.decode(line, type=dict[str, Any])
        except ValueError:
            continue
        if "code" in problem:
            return error_from(problem, f"the {server}")
    reason = lines[-1] if lines else f"exit {os.waitstatus_to_exitcode(status)}"
    return error("internal", reason=f"the {server} did not start: {reason}")


STOP_TIMEOUT_S = 30.0
_POLL_S = 0.02


def stop_process(pid: int, *, slow: str) -> None:
    """Send SIGTERM and wait until the process has ended; `slow` is the code of the error if it does not in time."""
    if not hasattr(os, "pidfd_open"):
        os.kill(pid, signal.SIGTERM)
        _poll_until_ended(pid, slow)
        return
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:  # it has just ended
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not select.select([process], [], [], STOP_TIMEOUT_S)[0]:
            raise error(slow, seconds=STOP_TIMEOUT_S, pid=pid)
    finally:
        os.close(process)


def _poll_until_ended(pid: int, slow: str) -> None:
    """Poll, on systems without pidfd, which cannot report the end of a process that is not a child."""
    for _ in range(round(STOP_TIMEOUT_S / _POLL_S)):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(_POLL_S)
    raise error(slow, seconds=STOP_TIMEOUT_S, pid=pid)
