"""Run SQL queries over the lake, in this process or in a warm session behind a Unix socket.

Every table is a view with its name. Each query runs in a session of its own after the guard has accepted it
(posthouse.pipeline.query_guard), so it can neither change anything nor see what another query set. The socket is in
the lake's directory and carries one JSON object per line:
    {"sql": "SELECT 1", "limit": 100}
    {"columns": ["1"], "rows": [[1]], "is_cut": false}     or     {"problem": {"code": ...}}
A process that can open the socket can read the whole lake, so its mode is 0600 in a directory with mode 0700.
Importing this module must not load pyspark: a query to a warm session has to be fast.
"""

from __future__ import annotations

import os
import re
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.files import private_dir
from posthouse.model.errors import PosthouseError, error, error_from_problem
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.lake import declared_names
from posthouse.pipeline.query_guard import check_question, refuse_connect, spark_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MAX_ROWS = 100_000  # per answer; export a larger result to a file


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows as JSON values; `is_cut` if there are more rows."""

    columns: list[str]
    rows: list[list[Any]]
    is_cut: bool


def ask(spark: SparkSession, lake: Lake, sql: str, limit: int = MAX_ROWS) -> Answer:
    """Run a query and return at most `limit` rows."""
    from pyspark.errors import PySparkException

    refuse_connect(spark)
    session = spark.newSession()
    session.conf.set("spark.sql.runSQLOnFiles", "false")  # a second lock, behind the guard
    check_question(session, sql, frozenset(declared_names()))
    register_named(session, lake, sql)
    try:
        frame = session.sql(sql)
        rows = frame.limit(limit + 1).collect()
    except PySparkException as failure:
        raise error("query_failed", reason=spark_reason(failure)) from failure
    shown = [[plain(value) for value in row] for row in rows[:limit]]
    return Answer(list(frame.columns), shown, len(rows) > limit)


def refuse_empty(lake: Lake) -> None:
    """Raise lake_empty if the lake has no commit."""
    if not lake.names():
        raise error("lake_empty", path=lake.location, table="at all")


def register_named(spark: SparkSession, lake: Lake, sql: str) -> None:
    """Register the tables that a query names as views; all tables if it names none, as SHOW TABLES."""
    words = set(re.findall(r"[a-z_]+", sql.lower()))
    named = words & set(declared_names())
    lake.register(spark, named or None)


def plain(value: Any) -> Any:
    """Convert a Spark value to a JSON value."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


SOCKET_NAME = "serve.sock"
ADDRESS_MAX_BYTES = 107  # of a Unix socket address on Linux, without the final NUL
LINE_MAX_BYTES = 1 << 20  # of a request


class QueryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A query in SQL."""

    sql: str
    limit: int


class Reply(msgspec.Struct, omit_defaults=True):
    """An answer or a problem."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    is_cut: bool = False
    problem: dict[str, Any] | None = None


@contextmanager
def socket_address(lake: Path) -> Iterator[str]:
    """Yield an address of the lake's socket that fits the limit: its path, or a path below /proc/self/fd."""
    path = str(lake / SOCKET_NAME)
    if len(os.fsencode(path)) <= ADDRESS_MAX_BYTES:
        yield path
        return
    fd = os.open(lake, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET_NAME}"
    finally:
        os.close(fd)


class QueryServer:
    """Serves queries of one lake from a warm session; `serve` blocks until `close`."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        refuse_connect(spark)
        self._spark = spark
        self._lake = lake
        self._lock = threading.Lock()
        private_dir(lake.path)
        _remove_stale(lake.path)
        with socket_address(lake.path) as address:
            mask = os.umask(0o177)  # other users must not be able to open the socket, not even briefly
            try:
                self._server = _Listener(address, self)
            finally:
                os.umask(mask)

    @property
    def path(self) -> Path:
        """The path of the socket."""
        return self._lake.path / SOCKET_NAME

    def serve(self) -> None:
        """Answer queries until `close`."""
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._server.server_close()
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop `serve`; call it from another thread."""
        self._server.shutdown()

    def answer(self, line: bytes) -> bytes:
        """Return the reply to one request line."""
        try:
            request = msgspec.json.decode(line, type=QueryRequest)
            with self._lock:
                answer = ask(self._spark, self._lake, request.sql, request.limit)
            reply = Reply(answer.columns, answer.rows, answer.is_cut)
        except msgspec.DecodeError as fault:
            reply = Reply(problem=error("usage", text=str(fault)).problem())
        except PosthouseError as failure:
            reply = Reply(problem=failure.problem())
        return msgspec.json.encode(reply) + b"\n"


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, address: str, owner: QueryServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: _Listener

    def handle(self) -> None:
        while line := self.rfile.readline(LINE_MAX_BYTES):
            self.wfile.write(self.server.owner.answer(line))


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
            raise error("lake_busy", path=str(path), hint="A server for this lake is already running.")


def ask_server(lake: Path, sql: str, limit: int) -> Answer | None:
    """Run a query on the lake's server; None if no server runs."""
    if not (lake / SOCKET_NAME).is_socket():
        return None
    with socket_address(lake) as address, socket.socket(socket.AF_UNIX) as stream:
        try:
            stream.connect(address)
        except OSError:  # a server that was killed leaves its socket behind
            return None
        with stream.makefile("rwb") as lines:
            lines.write(msgspec.json.encode(QueryRequest(sql, limit)) + b"\n")
            lines.flush()
            line = lines.readline()
    if not line:
        return None
    reply = msgspec.json.decode(line, type=Reply)
    if reply.problem is not None:
        reason = str(reply.problem.get("detail", "the server reports an unknown error"))
        raise error_from_problem(reply.problem) or error("query_failed", reason=reason)
    return Answer(reply.columns, reply.rows, reply.is_cut)
