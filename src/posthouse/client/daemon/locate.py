"""The address of a daemon: its directory, Unix socket, TCP port and token; and the mesh that requests mean.

There is one daemon for each home, in `daemon/`, with one directory inside it for each mesh. A daemon of an earlier
version, which had its socket in the directory of its mesh, is found there while it still runs.

The Unix socket is open to its user and needs no token. For TCP, `http.port` and `local_token` are read again for each
connection, because a restarted daemon may have new ones. A path too long for a socket address is reached through a
descriptor of its directory. The kernel says whether a daemon runs: it knows the listener of a socket and the holder of
a lock. A slow answer of a loaded daemon proves nothing.
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posthouse.files import home_directory, open_locked, read_private
from posthouse.model.address import AGENT_ENV, AGENT_HEADER, DEFAULT_INBOX
from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import DEFAULT_MESH, is_mesh_name, validate_served_mesh_name
from posthouse.tracing import TRACEPARENT, current_traceparent

SOCKET_NAME = "sock"
PORT_NAME = "http.port"
TOKEN_NAME = "local_token"
LOCK_NAME = "daemon.lock"
MESH_HEADER = "Posthouse-Mesh"
ADDRESS_MAX_BYTES = 107  # of a Unix socket address on Linux, without its ending NUL


@dataclass(frozen=True, slots=True)
class DaemonAddress:
    """The address of a daemon, given by its directory."""

    directory: Path
    #: connect to 127.0.0.1 with the token instead of to the Unix socket
    is_tcp: bool = False
    #: mesh that requests mean; None: the default one of the daemon
    mesh: str | None = None
    #: True for a daemon of an earlier version, in the directory of its mesh
    is_former: bool = False

    @property
    def socket(self) -> Path:
        """The Unix socket."""
        return self.directory / SOCKET_NAME

    def __str__(self) -> str:
        return f"127.0.0.1 ({self.directory})" if self.is_tcp else str(self.socket)

    def port(self) -> int:
        """Return the TCP port, or raise daemon_unreachable."""
        path = self.directory / PORT_NAME
        try:
            return int(path.read_text())
        except (OSError, ValueError) as failure:
            raise error("daemon_unreachable", daemon=str(self), reason=f"{path} holds no port") from failure

    def token(self) -> str:
        """Return the token for TCP, or raise daemon_unreachable."""
        path = self.directory / TOKEN_NAME
        try:
            return read_private(path).decode().strip()
        except FileNotFoundError as failure:
            raise error("daemon_unreachable", daemon=str(self), reason=f"there is no {path}") from failure


class SocketAddress:
    """A path of the socket that is short enough: its own, or one through an open descriptor of its directory."""

    def __init__(self, daemon: DaemonAddress) -> None:
        self._fd: int | None = None
        self.path = str(daemon.socket)
        if len(os.fsencode(self.path)) > ADDRESS_MAX_BYTES:
            self._fd = _open_directory(daemon)
            self.path = f"/proc/self/fd/{self._fd}/{SOCKET_NAME}"

    def close(self) -> None:
        """Close the descriptor, if there is one."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class DaemonState(enum.Enum):
    """What the kernel says about a daemon."""

    ABSENT = "absent"
    #: it holds its lock and has no socket: it is starting or stopping
    WITHOUT_SOCKET = "without a socket"
    LISTENING = "listening"


def daemon_state(daemon: DaemonAddress) -> DaemonState:
    """Return whether a daemon runs in a directory, without waiting for an answer from it."""
    address = SocketAddress(daemon)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(address.path)
    except (FileNotFoundError, ConnectionRefusedError):
        return DaemonState.WITHOUT_SOCKET if _is_locked(daemon.directory / LOCK_NAME) else DaemonState.ABSENT
    except BlockingIOError:  # its queue of new connections is full
        return DaemonState.LISTENING
    except OSError as failure:
        raise unreachable(daemon, failure) from failure
    finally:
        address.close()
    return DaemonState.LISTENING


def _is_locked(path: Path) -> bool:
    try:
        os.close(open_locked(path, exclusive=False, wait=False, create=False))
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def daemon_address(
    directory: str | os.PathLike[str] | None, mesh: str | None, *, is_tcp: bool = False
) -> DaemonAddress:
    """Return the address of the daemon in a directory, by default the daemon of the home."""
    if mesh is not None:
        validate_served_mesh_name(mesh)
    root = home_directory() / "daemon"
    if directory is not None:
        given = Path(directory).expanduser().absolute()
        if given.parent != root or not is_mesh_name(given.name):
            return DaemonAddress(given, is_tcp, mesh)
        mesh = mesh or given.name  # earlier, each mesh had its own daemon in this directory
    former = root / (mesh or DEFAULT_MESH)
    if not (root / SOCKET_NAME).exists() and (former / SOCKET_NAME).exists():
        return DaemonAddress(former, is_tcp, mesh, is_former=True)
    return DaemonAddress(root, is_tcp, mesh)


def acting_agent(given: str | None) -> str:
    """Return the agent that a program acts for: the given one, else POSTHOUSE_AGENT, else the default inbox."""
    return os.environ.get(AGENT_ENV, DEFAULT_INBOX) if given is None else given


def request_headers(address: DaemonAddress, agent: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a request: the given ones, the mesh, the agent, the span, and the token over TCP."""
    headers = dict(given)
    if address.mesh is not None:
        headers[MESH_HEADER] = address.mesh
    if agent:
        headers[AGENT_HEADER] = agent
    if (span := current_traceparent()) is not None:
        headers[TRACEPARENT] = span
    if address.is_tcp:
        headers["Authorization"] = f"Bearer {address.token()}"
    return headers


def unreachable(daemon: DaemonAddress, failure: BaseException) -> PosthouseError:
    """Return the error for a daemon that did not answer."""
    if isinstance(failure, FileNotFoundError):
        reason = "there is no socket"
    elif isinstance(failure, TimeoutError):
        reason = "it did not answer in time"
    elif isinstance(failure, OSError) and (failure.errno or 0) > 0:
        reason = os.strerror(int(failure.errno or 0))
    else:
        reason = str(failure) or type(failure).__name__
    return error("daemon_unreachable", daemon=str(daemon), reason=reason)


def _open_directory(daemon: DaemonAddress) -> int:
    try:
        return os.open(daemon.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as failure:
        raise unreachable(daemon, failure) from failure
