"""Answer SQL queries over the lake, in this process or by a warm session behind a Unix socket.

Every table is a view of its name. Only queries are answered; a statement that would change something is refused,
because nothing but a run writes the lake. The socket speaks one JSON object per line and lies in the lake's directory:
    {"sql": "SELECT 1", "limit": 100}
    {"columns": ["1"], "rows": [[1]], "is_cut": false}     or     {"problem": {"code": ...}}
Whoever can open the socket can read the whole lake, so it is 0600 in a directory that is 0700. Importing this module
must not load pyspark: asking a warm session has to be fast.
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
from posthouse.model.errors import ERROR_CODES, PosthouseError, error
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.lake import declared_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MAX_ROWS = 100_000  # of one answer; a larger one belongs into a file
_QUESTIONS = ("select", "with", "show", "describe", "desc", "explain", "values", "table", "from", "(")


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows, as JSON can hold them."""

    columns: list[str]
    rows: list[list[Any]]
    is_cut: bool


def ask(spark: SparkSession, lake: Lake, sql: str, limit: int = MAX_ROWS) -> Answer:
    """Return what the lake answers, at most `limit` rows."""
    from pyspark.errors import PySparkException

    if not sql.strip().lower().startswith(_QUESTIONS):
        raise error("query_failed", reason="only questions are answered: SELECT, WITH, SHOW, DESCRIBE, EXPLAIN")
    register_named(spark, lake, sql)
    try:
        frame = spark.sql(sql)
        rows = frame.limit(limit + 1).collect()
    except PySparkException as failure:
        raise error("query_failed", reason=_reason(failure)) from failure
    shown = [[plain(value) for value in row] for row in rows[:limit]]
    return Answer(list(frame.columns), shown, len(rows) > limit)


def refuse_empty(lake: Lake) -> None:
    """Raise lake_empty where nothing was ever committed."""
    if not lake.names():
        raise error("lake_empty", path=str(lake.path), table="at all")


def register_named(spark: SparkSession, lake: Lake, sql: str) -> None:
    """Make views of the tables that a question names; of all when it asks what there is."""
    words = set(re.findall(r"[a-z_]+", sql.lower()))
    named = words & set(declared_names())
    lake.register(spark, named or None)


def plain(value: Any) -> Any:
    """Return a value of Spark as JSON can hold it."""
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


def _reason(failure: Exception) -> str:
    return str(failure).strip().partition("\n")[0].partition(" SQLSTATE")[0]


SOCKET_NAME = "serve.sock"
ADDRESS_MAX_BYTES = 107  # of a Unix socket address on Linux, without its ending NUL
LINE_MAX_BYTES = 1 << 20  # of a question


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """A question in SQL."""

    sql: str
    limit: int


class Reply(msgspec.Struct, omit_defaults=True):
    """An answer, or why there is none."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    is_cut: bool = False
    problem: dict[str, Any] | None = None


@contextmanager
def socket_address(lake: Path) -> Iterator[str]:
    """Yield an address of the lake's socket that is short enough."""
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
            raise error("lake_busy", path=str(path), hint="A server of this lake runs already.")


_FIXED = ("type", "title", "status", "code", "detail", "hint")


def ask_server(lake: Path, sql: str, limit: int) -> Answer | None:
    """Return what the lake's server answers; None when no server runs."""
    if not (lake / SOCKET_NAME).is_socket():
        return None
    with socket_address(lake) as address, socket.socket(socket.AF_UNIX) as stream:
        try:
            stream.connect(address)
        except OSError:  # a killed server leaves its socket behind
            return None
        with stream.makefile("rwb") as lines:
            lines.write(msgspec.json.encode(Question(sql, limit)) + b"\n")
            lines.flush()
            line = lines.readline()
    if not line:
        return None
    reply = msgspec.json.decode(line, type=Reply)
    if reply.problem is not None:
        raise _error_of(reply)
    return Answer(reply.columns, reply.rows, reply.is_cut)


def _error_of(reply: Reply) -> PosthouseError:
    problem = reply.problem or {}
    fields = {name: value for name, value in problem.items() if name not in _FIXED}
    code = problem["code"] if problem.get("code") in ERROR_CODES else "query_failed"
    return error(code, hint=problem.get("hint"), **fields)
