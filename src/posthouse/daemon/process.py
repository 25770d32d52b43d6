"""Running a daemon as a process: in the foreground until it is ended, or detached until its socket answers.

A daemon that cannot go on ends with the exit code of what ended it; 4 means its identity, and a service manager must
not start it again by itself. SIGTERM and SIGINT end it gracefully.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import structlog
import uvloop

from posthouse.client.problems import error_from
from posthouse.daemon.daemon import Daemon
from posthouse.daemon.directory import DaemonDirectory
from posthouse.daemon.log import configure_log
from posthouse.daemon.settings import DaemonSettings
from posthouse.model.errors import PosthouseError, error

log = structlog.get_logger(__name__)
START_S = 30.0
STOP_S = 15.0
_LOOK_S = 0.02


def run_daemon(settings: DaemonSettings, on_ready: Callable[[Daemon], None], *, log_level: str = "info") -> None:
    """Run a daemon until SIGTERM or SIGINT; raises what else ends it. `on_ready` is called once it answers."""
    directory = DaemonDirectory(settings.directory)
    directory.prepare()
    configure_log(directory.log, log_level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, on_ready))
    except PosthouseError as failure:
        log.error("daemon_ended", code=failure.code, reason=str(failure), exit=int(failure.spec.exit))
        raise


async def serve(settings: DaemonSettings, on_ready: Callable[[Daemon], None]) -> None:
    """Start a daemon, wait until it has to end, and stop it."""
    daemon = Daemon(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.end)
    await daemon.start()
    try:
        on_ready(daemon)
        await daemon.wait()
    finally:
        await daemon.stop()


def detach(command: Sequence[str], directory: Path, *, timeout_s: float = START_S) -> int:
    """Start a command that runs a daemon in the foreground, apart from this one, and wait until its socket answers.

    Returns its process id; raises what the command said on stderr when it ends instead.
    """
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
            cwd="/",
        )
        for _ in range(round(timeout_s / _LOOK_S)):
            if child.poll() is not None:
                raise _ended(directory, child.returncode, said)
            if is_answering(DaemonDirectory(directory).socket):
                return child.pid
            time.sleep(_LOOK_S)
        child.terminate()
        raise error("daemon_not_running", directory=str(directory), reason=f"not ready after {timeout_s:g} s")


def end_daemon(directory: Path, *, timeout_s: float = STOP_S) -> int | None:
    """End the daemon of a directory and wait until it is gone; return its process id, None when none runs."""
    place = DaemonDirectory(directory)
    pid = place.running_pid()
    if pid is None:
        return None
    os.kill(pid, signal.SIGTERM)
    for _ in range(round(timeout_s / _LOOK_S)):
        if place.running_pid() is None:
            return pid
        time.sleep(_LOOK_S)
    raise error("daemon_running", directory=str(directory))


def is_answering(path: Path, timeout_s: float = 0.1) -> bool:
    """Tell whether a daemon answers on its socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout_s)
        try:
            peer.connect(str(path))
            peer.sendall(b"GET /v1/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return peer.recv(12) == b"HTTP/1.1 200"
        except OSError:
            return False


def _ended(directory: Path, code: int, said: IO[bytes]) -> PosthouseError:
    """Return what a command that ended said: its problem, if the last line is one."""
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else f"it ended with exit code {code}"
    try:
        problem = json.loads(last)
    except ValueError:
        problem = None
    if isinstance(problem, dict) and "code" in problem:
        return error_from(problem, "the daemon")
    return error("daemon_not_running", directory=str(directory), reason=last)
