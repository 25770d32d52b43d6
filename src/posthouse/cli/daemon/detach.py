"""Starting a daemon that outlives the command that starts it.

The child is `posthouse daemon up --foreground --json` in a session of its own. It tells one line on its stdout when its
socket answers; a child that ends before has told why on its stderr, and that is raised here as the error it was there.
"""

from __future__ import annotations

import os
import select
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any

from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError, error

START_S = 60.0
_LINE_MAX_BYTES = 1 << 16


def start_detached(tokens: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Start `posthouse daemon up` with these options and return what it says once it is ready."""
    import msgspec

    command = [sys.executable, "-m", "posthouse.cli.main", "daemon", "up", "--foreground", "--json", *tokens]
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as errors:
        try:
            pid = _spawn(command, environ, writing, errors)
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as told:
            line = _read_line(told, pid)
        if line is None:
            raise _failure(os.waitpid(pid, 0)[1], errors)
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


def _read_line(told: IO[bytes], pid: int) -> bytes | None:
    """Return the child's line, or None when it ended without one."""
    clock = system_clock()
    end_ns = clock.boot_ns() + round(START_S * 1e9)
    line = b""
    while not line.endswith(b"\n"):
        left_s = (end_ns - clock.boot_ns()) / 1e9
        if left_s <= 0 or not select.select([told], [], [], left_s)[0]:
            raise error("daemon_start_slow", seconds=START_S, pid=pid)
        part = told.read(_LINE_MAX_BYTES)
        if not part:
            return None
        line += part
    return line


def _failure(status: int, errors: IO[bytes]) -> PosthouseError:
    import msgspec

    from posthouse.client.problems import error_from

    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    for line in reversed(lines):
        try:
            problem = msgspec.json.decode(line, type=dict[str, Any])
        except ValueError:
            continue
        if "code" in problem:
            return error_from(problem, "the daemon")
    reason = lines[-1] if lines else f"exit {os.waitstatus_to_exitcode(status)}"
    return error("internal", reason=f"the daemon did not start: {reason}")
