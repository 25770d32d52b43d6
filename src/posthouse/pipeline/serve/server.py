"""The server of a warm session: answers questions on a Unix socket until it is closed.

One question at a time is registered, several may be computed at once. Whoever can reach the socket can read the whole
lake, so it is for its owner alone: 0600, in a directory that is 0700. A socket that a killed server left is replaced;
one that still answers is not.
"""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from posthouse.files import private_dir
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.query import ask
from posthouse.pipeline.serve.wire import LINE_MAX_BYTES, SOCKET_NAME, Question, Reply, socket_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Server:
    """A warm session of one lake; `serve` blocks until `close`."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._lock = threading.Lock()
        private_dir(lake.path)
        _remove_stale(lake.path)
        with socket_address(lake.path) as address:
            mask = os.umask(0o177)  # the socket must never be open to others, not for a moment
            try:
                self._server = _Listener(address, self)
            finally:
                os.umask(mask)

    @property
    def path(self) -> Path:
        """The socket."""
        return self._lake.path / SOCKET_NAME

    def serve(self) -> None:
        """Answer questions until closed."""
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._server.server_close()
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """End `serve`, from another thread."""
        self._server.shutdown()

    def answer(self, line: bytes) -> bytes:
        """Return the reply to one line."""
        try:
            question = msgspec.json.decode(line, type=Question)
            with self._lock:
                found = ask(self._spark, self._lake, question.sql, question.limit)
            reply = Reply(found.columns, found.rows, found.is_cut)
        except msgspec.DecodeError as fault:
            reply = Reply(problem=error("usage", text=str(fault)).problem())
        except PosthouseError as failure:
            reply = Reply(problem=failure.problem())
        return msgspec.json.encode(reply) + b"\n"


class _Handler(socketserver.StreamRequestHandler):
    server: _Listener

    def handle(self) -> None:
        while line := self.rfile.readline(LINE_MAX_BYTES):
            self.wfile.write(self.server.owner.answer(line))


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, address: str, owner: Server) -> None:
        self.owner = owner
        super().__init__(address, _Handler)


def _remove_stale(lake: Path) -> None:
    path = lake / SOCKET_NAME
    if not path.is_socket():
        return
    with socket_address(lake) as address, socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address)
        except OSError:
            path.unlink()
        else:
            raise error("lake_busy", path=str(path), hint="A server of this lake runs already.")
