"""A warm Spark session behind a Unix socket: queries, audits and simulations of other processes run in it.

The socket is in the lake's directory and carries one JSON object per line, a request with one of three fields:
    {"sql": "SELECT 1", "limit": 100}                    {"columns": ["1"], "rows": [[1]], "is_cut": false}
    {"audit": {"sources": [...], "is_derived": false}}   {"result": {"records": ..., "findings": [...]}}
    {"whatif": {"config": BASE64, "rules": BASE64}}      {"result": {"totals": [...], ...}}
or {"problem": {"code": ...}}. If Java ends, the server ends as well: it closes the connection without a reply, and the
client starts its own Spark. Each connection has a thread, and Spark shares its cores fairly between them, so a long
audit does not hold up a query. If a client disconnects, as after Ctrl-C, the Spark jobs of its request are cancelled. A
process that can open the socket can read the whole lake, so its mode is 0600 in a directory with mode 0700. Importing
this module must not load pyspark: a query to a warm session has to be fast.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.files import private_dir
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError, error, error_from_problem
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.query import Answer, ask
from posthouse.pipeline.query_guard import refuse_connect
from posthouse.pipeline.session.spark import stopped_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOCKET_NAME = "serve.sock"
ADDRESS_MAX_BYTES = 107  # of a Unix socket address on Linux, without the final NUL
LINE_MAX_BYTES = 4 << 20  # of a request
#: Spark settings of a session that answers several requests at once.
FAIR = {"spark.scheduler.mode": "FAIR"}


class SourceRequest(msgspec.Struct, omit_defaults=True):
    """A source of an audit, with the token that the client has for it."""

    url: str
    token: str | None = None
    tls_ca: str | None = None


class AuditRequest(msgspec.Struct, omit_defaults=True):
    """An audit of the server's lake."""

    sources: list[SourceRequest] = []
    is_derived: bool = False
    #: Node ids whose published roots count.
    publishers: list[str] = []
    #: The client's node; its roots count too.
    own_node: str = ""


class WhatIfRequest(msgspec.Struct, omit_defaults=True):
    """A simulation on the server's lake: the contents of a config.json and of an access-rules.json."""

    config: bytes | None = None
    rules: bytes | None = None
    limit: int = 50


class Request(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One request: exactly one of its fields is set."""

    sql: str | None = None
    limit: int = 0
    audit: AuditRequest | None = None
    whatif: WhatIfRequest | None = None


class Reply(msgspec.Struct, omit_defaults=True):
    """The rows of a query, the result of another request, or a problem."""

    columns: list[str] = []
    rows: list[list[Any]] = []
    is_cut: bool = False
    result: dict[str, Any] | None = None
    problem: dict[str, Any] | None = None


@contextmanager
def socket_address(lake: Path) -> Iterator[str]:
    """Yield an address of the lake's socket within the length limit: its path, or a path below /proc/self/fd."""
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
    """Serve requests about one lake from a warm session; `serve` blocks until `close`."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        refuse_connect(spark)
        self._spark = spark
        self._lake = lake
        self._stopped: PosthouseError | None = None
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
        """Answer requests until `close`; raise spark_stopped if Java has ended."""
        try:
            self._server.serve_forever(poll_interval=0.2)
        finally:
            self._server.server_close()
            self.path.unlink(missing_ok=True)
        if self._stopped is not None:
            raise self._stopped

    def close(self) -> None:
        """Stop `serve`; call it from another thread."""
        self._server.shutdown()

    def answer(self, line: bytes, connection: socket.socket) -> bytes:
        """Return the reply to one request line; raise spark_stopped, and let `serve` end, if Java has ended.

        If the peer closes the connection, work on its request ends.
        """
        try:
            request = msgspec.json.decode(line, type=Request)
            with _cancelled_with(connection, self._spark):
                reply = self._reply(request)
        except msgspec.DecodeError as fault:
            reply = Reply(problem=error("usage", text=str(fault)).problem())
        except Exception as failure:
            if stopped := stopped_spark(failure):
                self._stopped = stopped
                threading.Thread(target=self.close).start()
                raise stopped from failure
            if not isinstance(failure, PosthouseError):
                raise
            reply = Reply(problem=failure.problem())
        return msgspec.json.encode(reply) + b"\n"

    def _reply(self, request: Request) -> Reply:
        lake = self._lake
        if request.sql is not None:
            answer = ask(self._spark, lake, request.sql, request.limit)
            return Reply(answer.columns, answer.rows, answer.is_cut)
        if request.audit is not None:
            return Reply(result=run_audit(self._spark, lake, request.audit))
        if request.whatif is not None:
            return Reply(result=run_whatif(self._spark, lake, request.whatif))
        raise error("usage", text="a request has one of the fields sql, audit and whatif")


def run_audit(spark: SparkSession, lake: Lake, request: AuditRequest) -> dict[str, Any]:
    """Audit a lake, save the result for programs that show it, and return the report as a JSON object."""
    from posthouse.pipeline.audit.audit import audit
    from posthouse.pipeline.audit.finding import KEPT_FINDINGS, LastAudit, save_last_audit
    from posthouse.pipeline.connector.source_access import Access

    sources = [Access(each.url, each.token, each.tls_ca) for each in request.sources]
    has_lake = bool(lake.names())
    found = audit(
        spark,
        lake if has_lake else None,
        sources,
        is_derived=request.is_derived,
        publishers=request.publishers,
        own_node=request.own_node,
    )
    if has_lake:
        now_ns, first = system_clock().wall_ns(), found.findings[:KEPT_FINDINGS]
        save_last_audit(lake.path, LastAudit(now_ns, found.records, found.events, found.counts, first))
    return found.as_value()


def run_whatif(spark: SparkSession, lake: Lake, request: WhatIfRequest) -> dict[str, Any]:
    """Simulate other rules, and return the differences as a JSON object."""
    from posthouse.pipeline.whatif.proposed_rules import parse_proposal
    from posthouse.pipeline.whatif.simulation import bus_journal, compare, simulate_history

    proposal = parse_proposal(request.config, request.rules)
    return compare(simulate_history(bus_journal(spark, lake), proposal), request.limit)


class _Listener(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, address: str, owner: QueryServer) -> None:
        self.owner = owner
        super().__init__(address, _Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: _Listener

    def handle(self) -> None:
        # If Java has ended, `serve` raises the error. A client that has disconnected needs no reply.
        with suppress(PosthouseError, ConnectionError):
            while line := self.rfile.readline(LINE_MAX_BYTES):
                self.wfile.write(self.server.owner.answer(line, self.connection))


@contextmanager
def _cancelled_with(connection: socket.socket, spark: SparkSession) -> Iterator[None]:
    """Cancel the Spark jobs of this thread, present and future, as soon as the peer closes the connection."""
    from py4j.protocol import Py4JError

    context: Any = spark.sparkContext
    group = secrets.token_hex(8)
    context.setJobGroup(group, "a request from another process")
    watched, done = socket.socketpair()

    def watch() -> None:
        poll = _closing(connection)
        poll.register(watched, select.POLLIN)
        if watched.fileno() not in {fd for fd, _event in poll.poll()}:
            with suppress(Py4JError, OSError):  # Java may have ended
                context._jsc.sc().cancelJobGroupAndFutureJobs(group)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except Exception as failure:
        if _closing(connection).poll(0):  # the work failed because it was cancelled; no process reads the reason
            raise ConnectionAbortedError from failure
        raise
    finally:
        done.close()
        watcher.join()
        watched.close()


def _closing(connection: socket.socket) -> select.poll:
    """Return a poll that is ready once the peer has closed the connection, not when it has only ended its sending."""
    poll = select.poll()
    poll.register(connection, 0)  # nothing but POLLHUP and errors, which are always reported
    return poll


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
    reply = _call(lake, Request(sql=sql, limit=limit))
    return None if reply is None else Answer(reply.columns, reply.rows, reply.is_cut)


def ask_server_for(lake: Path, *, audit: AuditRequest | None = None, whatif: WhatIfRequest | None = None) -> Any:
    """Return the result of an audit or a simulation on the lake's server; None if no server runs."""
    reply = _call(lake, Request(audit=audit, whatif=whatif))
    return None if reply is None else reply.result


def _call(lake: Path, request: Request) -> Reply | None:
    if not (lake / SOCKET_NAME).is_socket():
        return None
    with socket_address(lake) as address, socket.socket(socket.AF_UNIX) as stream:
        try:
            stream.connect(address)
        except OSError:  # a server that was killed leaves its socket behind
            return None
        with stream.makefile("rwb") as lines:
            lines.write(msgspec.json.encode(request) + b"\n")
            lines.flush()
            line = lines.readline()
    if not line:
        return None
    reply = msgspec.json.decode(line, type=Reply)
    if reply.problem is not None:
        reason = str(reply.problem.get("detail", "the server reports an unknown error"))
        raise error_from_problem(reply.problem) or error("query_failed", reason=reason)
    return reply
