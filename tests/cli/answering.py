"""A socket that answers as a daemon does, or wrongly, or not at all, for commands that run as processes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Answering:
    """A socket that answers every request with the same bytes and keeps what it was asked."""

    def __init__(self, directory: Path, answer: bytes | None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "sock").unlink(missing_ok=True)
        self.asked: list[bytes] = []
        self._has_asked = threading.Event()
        self._answer = answer
        self._held: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "sock"))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            asked = read_request(connection)
            if not asked:  # it only asked whether there is a daemon
                connection.close()
                continue
            self.asked.append(asked)
            self._has_asked.set()
            if self._answer is None:
                self._held.append(connection)
            else:
                connection.sendall(self._answer)
                connection.close()

    def wait_for_request(self) -> None:
        assert self._has_asked.wait(60)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for connection in self._held:
            connection.close()


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65_536)
        if not chunk:
            return b""
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    _, has_body, rest = head.lower().partition(b"content-length: ")
    size = int(rest.split(b"\r\n")[0]) if has_body else 0
    while len(body) < size:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


@contextmanager
def answering(directory: Path, answer: bytes | None) -> Iterator[Answering]:
    server = Answering(directory, answer)
    try:
        yield server
    finally:
        server.close()


def ok(body: str = "", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body.encode())}\r\n{lines}\r\n{body}".encode()


def environment(home: Path, **extra: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": str(home), **extra}


def daemon_of(home: Path) -> Path:
    return home / ".posthouse" / "daemon"
