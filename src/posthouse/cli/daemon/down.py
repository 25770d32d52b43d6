"""`posthouse daemon down`: end the daemon."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near
from posthouse.model.errors import error

PATIENCE_S = 30.0
_LOOK_S = 0.02


def down(*, near: Near = USUAL, output: Output = PLAIN) -> None:
    """End the daemon and wait until it is gone; what it accepted is on its disk and leaves after the next start.

    For example:

        posthouse daemon down
        posthouse daemon down --mesh team --json
    """
    pid = _daemon_pid(near)
    if pid is None:
        output.answer({"stopped": False, "pid": None}, "no daemon runs there")
        return
    os.kill(pid, signal.SIGTERM)
    _wait_gone(pid)
    output.answer({"stopped": True, "pid": pid}, f"the daemon (pid {pid}) has ended")


def _daemon_pid(near: Near) -> int | None:
    """Return the process behind the socket, as the kernel names it: a pid file may be older than its process."""
    from posthouse.client.daemon.place import SocketAddress

    place = near.place()
    if not place.socket.exists():
        return None
    address = SocketAddress(place)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
            made.settimeout(5)
            made.connect(address.path)
            return _peer_pid(made)
    except (ConnectionRefusedError, FileNotFoundError):
        return None
    finally:
        address.close()


def _peer_pid(connected: socket.socket) -> int:
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        return int(struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])
    local_level, local_peer_pid = 0, 2  # SOL_LOCAL and LOCAL_PEERPID of macOS, which Python does not name
    return int(connected.getsockopt(local_level, local_peer_pid))


def _wait_gone(pid: int) -> None:
    for _ in range(round(PATIENCE_S / _LOOK_S)):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if _is_over(pid):
            return
        time.sleep(_LOOK_S)
    raise error("daemon_stop_slow", seconds=PATIENCE_S, pid=pid)


def _is_over(pid: int) -> bool:
    """Tell whether the process has ended and only its parent has not looked yet."""
    from pathlib import Path

    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False
