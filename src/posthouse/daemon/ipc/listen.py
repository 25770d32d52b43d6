"""Opening the ways in: the Unix socket always, loopback where it makes sense.

The socket lies in a private directory and is made with its mode before anybody is listened to. In a container
loopback is shared with nobody who should reach the daemon, so TCP is off there unless it is asked for.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from posthouse.daemon.ipc.protocol import IpcServer
from posthouse.model.errors import error

_BACKLOG = 1_024
_SOCKET_MODE = 0o600
_PATH_MAX_BYTES = 107  # of a Unix socket's address
_MARKS = ("/.dockerenv", "/run/.containerenv")
_CGROUP_WORDS = ("docker", "kubepods", "containerd", "libpod", "lxc")


async def listen_unix(path: Path, server: IpcServer) -> asyncio.Server:
    """Listen on a Unix socket that only this user can reach."""
    if len(os.fsencode(path)) > _PATH_MAX_BYTES:
        raise error("listen_failed", listen=str(path), reason=f"its path is longer than {_PATH_MAX_BYTES} bytes")
    bound = _bind(path)
    try:
        return await asyncio.get_running_loop().create_unix_server(server, sock=bound, backlog=_BACKLOG)
    except BaseException:
        bound.close()
        raise


def _bind(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.fchmod(bound.fileno(), _SOCKET_MODE)  # the file bind() makes has the mode of the socket, less the umask
        bound.bind(str(path))
        path.chmod(_SOCKET_MODE)
    except OSError as failure:
        bound.close()
        raise error("listen_failed", listen=str(path), reason=failure.strerror or str(failure)) from failure
    return bound


async def listen_tcp(server: IpcServer) -> tuple[asyncio.Server, int]:
    """Listen on a free port of loopback; return the port too."""
    try:
        listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0, backlog=_BACKLOG)
    except OSError as failure:
        raise error("listen_failed", listen="127.0.0.1:0", reason=failure.strerror or str(failure)) from failure
    return listening, int(listening.sockets[0].getsockname()[1])


def is_container(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Tell whether this process runs in a container."""
    if environ.get("container") or environ.get("KUBERNETES_SERVICE_HOST"):
        return True
    if any((root / mark.lstrip("/")).exists() for mark in _MARKS):
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text()
    except OSError:
        return False
    return any(word in groups for word in _CGROUP_WORDS)
