"""A server of the comparison as a child process, with a private directory and free ports of the loopback interface.

The kernel kills the process if the benchmark dies, so that no server stays behind. Where the benchmark runs as root, a
server that refuses root runs as `nobody`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from posthouse.model.errors import error

T = TypeVar("T")
LOOPBACK = "127.0.0.1"
_TIMEOUT_S = 60
_PROBE_S = 0.05
_PR_SET_PDEATHSIG = 1
_UNPACKED = Path(__file__).parents[2] / "build" / "peers" / "usr"
#: where bench/peers/install unpacks a newer server than Debian's, and where Debian keeps servers
_SERVER_DIRS = (_UNPACKED / "sbin", _UNPACKED / "bin", Path("/usr/lib/rabbitmq/bin"), Path("/usr/sbin"))


def find_server(name: str, *more_dirs: Path) -> Path | None:
    """Return the path of a server's program, None if it is not installed."""
    directories = [str(each) for each in (*more_dirs, *_SERVER_DIRS)]
    found = shutil.which(name, path=os.pathsep.join((*directories, os.environ.get("PATH", os.defpath))))
    return None if found is None else Path(found)


def server_version(*command: str | Path) -> str:
    """Return the first line that a program prints about its version."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    return (done.stdout or done.stderr).strip().splitlines()[0]


def free_ports(count: int) -> list[int]:
    """Return ports that no program uses now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((LOOPBACK, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class ServerProcess:
    """One running server, its log and its end."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        avoids_root: bool = False,
    ) -> None:
        self._log = folder / "log"
        self._stop_signal = stop_signal
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=os.environ | (environment or {}),
                start_new_session=True,
                preexec_fn=_die_with_parent,
                **(_unprivileged(folder) if avoids_root else {}),
            )

    async def wait_ready(self, probe: Callable[[], Awaitable[T]], failure: type[Exception] = OSError) -> T:
        """Repeat `probe` until it raises no such failure, and return its result."""
        until = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                return await probe()
            except failure as reason:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{self._process.args!r}: {self._log.read_text()[-2000:]}") from reason
                await asyncio.sleep(_PROBE_S)

    def stop(self) -> None:
        """End the server and everything that it started."""
        if self._process.poll() is None:
            self._process.send_signal(self._stop_signal)
        try:
            self._process.wait(_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Return the arguments of Popen for a server that refuses root; as root, `nobody` gets the folder."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def run_unprivileged(command: Sequence[str | Path], folder: Path) -> None:
    """Run a program that refuses root, with `folder` as its working directory."""
    as_user = _unprivileged(folder)
    if subprocess.run(["test", "-w", folder], cwd="/", **as_user).returncode != 0:
        raise error(
            "value_invalid",
            name="--dir",
            reason=f"the user nobody cannot reach {folder}, and root may not run PostgreSQL",
        )
    subprocess.run(command, check=True, capture_output=True, cwd=folder, timeout=_TIMEOUT_S, **as_user)


async def can_connect(port: int) -> None:
    """Connect to a port and close the connection; raise OSError if no server listens."""
    _, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
