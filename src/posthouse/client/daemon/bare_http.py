"""One request to the daemon of this user with only `socket`, for commands that must start in milliseconds.

Importing the standard library's HTTP client would take longer than such a command runs. The caller interprets the
answer; OSError or ValueError means that there was none.
"""

from __future__ import annotations

import os
import socket
import time

TYPE_CHECKING = False  # see posthouse.lazy
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONNECT_S = 0.1
#: longest silence of a daemon before the caller is asked whether it still wants the answer
WATCH_S = 1.0
_SEND_S = 1.0
_SOCKET = "sock"


class Answer:
    """The daemon's answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


def default_directory() -> str:
    """Return the directory of this user's daemon."""
    home = os.environ.get("POSTHOUSE_HOME") or os.path.join("~", ".posthouse")  # noqa: PTH118 - pathlib is slow to load
    return os.path.join(os.path.expanduser(home), "daemon")  # noqa: PTH111, PTH118


def connect(directory: str) -> socket.socket:
    """Connect to the daemon in a directory; OSError says that nothing was sent."""
    # the address of a socket has at most 107 bytes, the path of a home may be longer
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchdir(here)
        connection.settimeout(CONNECT_S)
        connection.connect(_SOCKET)
    except BaseException:
        connection.close()
        raise
    finally:
        os.fchdir(before)
        os.close(before)
        os.close(here)
    return connection


def exchange(
    connection: socket.socket,
    request: str,
    headers: Mapping[str, str],
    body: bytes,
    deadline: float,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Answer:
    """Send one request, such as `POST /v1/send`, and return its answer.

    It waits until `deadline`, in monotonic seconds, and only while `is_wanted`.
    """
    lines = [f"{request} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection.settimeout(min(_SEND_S, max(0.0, deadline - time.monotonic())))
    connection.sendall("\r\n".join((*lines, "", "")).encode() + body)
    received = bytearray()
    while chunk := _receive(connection, deadline, is_wanted):
        received += chunk
    return _parse(bytes(received))


def _receive(connection: socket.socket, deadline: float, is_wanted: Callable[[], bool]) -> bytes:
    while True:
        connection.settimeout(min(WATCH_S, max(0.0, deadline - time.monotonic())))
        try:
            return connection.recv(65_536)
        except TimeoutError:
            if time.monotonic() >= deadline or not is_wanted():
                raise


def _parse(received: bytes) -> Answer:
    head, separator, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    if not separator or len(parts) < 2:
        raise ValueError("the answer is not HTTP")
    pairs = (line.partition(":") for line in lines[1:])
    return Answer(int(parts[1]), {name.lower(): value.strip() for name, _, value in pairs}, body)
