"""Connect to PostgreSQL with one set of session settings; translate its errors.

Every connection of posthouse to PostgreSQL is opened here. Each is in autocommit mode, so that transactions begin and
end where the code says, and works in a pipeline: `queue` adds a statement, the next read sends everything that is
queued. A session may not hang: connecting, waiting for locks, idling inside a transaction and a silent network all have
a bound, so that a stopped process never stops other processes. A pooler that shares sessions between transactions is
refused because session settings and session locks would get lost.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import conninfo
from psycopg.types.numeric import Int8BinaryDumper

from posthouse.log import get_log
from posthouse.model.errors import PosthouseError, error
from posthouse.postgresql.binary_arrays import ArrayDumper
from posthouse.postgresql.store_url import shown_url

log = get_log(__name__)
_LEAST_VERSION = 140_000  # older servers have pg_xact_status and pipelines too, but get no fixes
_CONNECT_S = 3
_READ_MS = 10_000  # far above any keyset read; a longer read keeps dead rows alive
_LOCK_MS = 5_000  # a group of another relay takes milliseconds, one that hangs ends after _IDLE_MS
_IDLE_MS = 1_000  # between two statements of a group only computations run
_PROBE_MS = 2_000
_PARAMETERS = {
    "application_name": "posthouse",
    "target_session_attrs": "read-write",
    "connect_timeout": _CONNECT_S,
    "tcp_user_timeout": 5_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "client_encoding": "UTF8",
}
# The server keeps the plan of a statement while tables grow: one that was made for a table of a few rows reads all of
# it for each group, until the table is analyzed. All statements find their rows by key, so sessions plan for that.
# Without `jit` off the server would compile the few statements without an index, whose cost is set high by this.
_BY_KEY: dict[str, int | str] = {"enable_seqscan": "off", "jit": "off"}
_JOINS_BY_KEY: dict[str, int | str] = {"enable_hashjoin": "off", "enable_mergejoin": "off"}
_WRITER_SETTINGS = _BY_KEY | _JOINS_BY_KEY | {"lock_timeout": _LOCK_MS, "idle_in_transaction_session_timeout": _IDLE_MS}
_COPY_SETTINGS = {"lock_timeout": _LOCK_MS, "statement_timeout": 0, "idle_in_transaction_session_timeout": 0}
_READER_SETTINGS = _BY_KEY | {"statement_timeout": _READ_MS, "idle_in_transaction_session_timeout": _READ_MS}


class ServerConnection:
    """One session; its statements have parameters $1, $2, and results are in binary form."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        self._prepares = True
        # one type for all integers: a statement has one plan; arrays in binary form: bytes stay as they are
        connection.adapters.register_dumper(int, Int8BinaryDumper)
        connection.adapters.register_dumper(list, ArrayDumper)

    def queue(self, statement: str, *parameters: Any) -> psycopg.RawCursor[tuple[Any, ...]]:
        """Add a statement to the pipeline; its error is raised by the next read or at the end of the pipeline."""
        cursor = psycopg.RawCursor(self._connection)
        cursor.execute(statement.encode(), parameters, binary=True, prepare=None if self._prepares else False)
        return cursor

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        return self.queue(statement, *parameters).fetchall()

    def row(self, statement: str, *parameters: Any) -> tuple[Any, ...] | None:
        """Return the first row of a statement."""
        return self.queue(statement, *parameters).fetchone()

    def value(self, statement: str, *parameters: Any) -> Any:
        """Return the first column of the first row, None without a row."""
        found = self.queue(statement, *parameters).fetchone()
        return None if found is None else found[0]

    def run_script(self, text: str) -> None:
        """Run several statements without parameters."""
        psycopg.ClientCursor(self._connection).execute(text.encode())

    def copy_rows(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run COPY ... FROM STDIN with these rows."""
        with self._connection.cursor().copy(statement.encode()) as copy:
            for row in rows:
                copy.write_row(row)

    @contextlib.contextmanager
    def pipeline(self, *, prepares: bool = True) -> Iterator[None]:
        """Send the statements of the body together, except where a read intervenes; raise the first error at its end.

        A body with ROLLBACK TO must not prepare statements: psycopg then forgets all prepared ones except those in
        flight.
        """
        self._prepares, former = prepares and self._prepares, self._prepares
        try:
            with self._connection.pipeline():
                yield
        finally:
            self._prepares = former

    def fileno(self) -> int:
        """Return the descriptor of the session, readable when `take_notifications` has something to return."""
        return self._connection.fileno()

    def take_notifications(self) -> list[tuple[str, str]]:
        """Return the channel and the text of each notification that has arrived, without waiting."""
        pgconn, found = self._connection.pgconn, []
        pgconn.consume_input()
        while (notification := pgconn.notifies()) is not None:
            found.append((notification.relname.decode(), notification.extra.decode()))
        return found

    @property
    def is_lost(self) -> bool:
        """Return True if the session has ended."""
        return self._connection.closed

    def close(self) -> None:
        """End the session; never raises."""
        with contextlib.suppress(psycopg.Error):
            self._connection.close()


def open_session(url: str, settings: Mapping[str, int | str]) -> ServerConnection:
    """Open a session with these settings; raise a PosthouseError."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as exc:
        raise error("store_url_invalid", reason=str(exc).strip()) from exc
    options = " ".join([*_given_options(given), *(f"-c {name}={value}" for name, value in settings.items())])
    parameters: dict[str, Any] = _PARAMETERS | given | {"options": options}
    try:
        connection = psycopg.Connection.connect("", autocommit=True, prepare_threshold=0, **parameters)
    except psycopg.Error as exc:
        raise translate(exc, url) from exc
    connection.prepared_max = 1_000  # more than any session uses
    return ServerConnection(connection)


def _given_options(given: dict[str, Any]) -> list[str]:
    return [str(given["options"])] if given.get("options") else []


def open_writer_session(url: str) -> ServerConnection:
    """Open a session that may write; it ends by itself if it idles inside a transaction."""
    return _durable(open_session(url, _WRITER_SETTINGS))


def open_copy_session(url: str) -> ServerConnection:
    """Open a session that reads or writes a whole store, however long that takes."""
    return _durable(open_session(url, _COPY_SETTINGS))


def _durable(session: ServerConnection) -> ServerConnection:
    """Let commits of the session survive power loss, and the loss of the server where a standby is synchronous."""
    if session.value("SHOW synchronous_commit") in ("off", "local"):
        session.queue("SET synchronous_commit = on")
    return session


def open_reader_session(url: str) -> ServerConnection:
    """Open a session for reads that are short."""
    return open_session(url, _READER_SETTINGS)


def check_server(url: str) -> None:
    """Refuse a server that is too old, has another encoding, or is behind a pooler that shares sessions."""
    session = open_session(url, {"statement_timeout": _PROBE_MS})
    try:
        version, encoding, fsync = session.row(
            "SELECT current_setting('server_version_num')::bigint, current_setting('server_encoding'),"
            " current_setting('fsync')"
        ) or (0, "", "")
        if version < _LEAST_VERSION:
            raise _unusable(url, f"its version is {version // 10_000}, not 14 or newer")
        if encoding != "UTF8":
            raise _unusable(url, f"its encoding is {encoding}, not UTF8")
        if fsync != "on":
            log.warning("store_not_durable", store=shown_url(url), reason="the server runs with fsync=off")
        if _shares_sessions(session, url):
            raise error("store_behind_pooler", url=shown_url(url))
    except psycopg.Error as exc:
        raise translate(exc, url) from exc
    finally:
        session.close()


def _shares_sessions(session: ServerConnection, url: str) -> bool:
    """Return True if a session setting gets lost while another client is inside a transaction."""
    mark = secrets.token_hex(8)
    session.queue("SELECT set_config('posthouse.probe', $1, false)", mark)
    other = open_session(url, {})
    try:
        other.queue("BEGIN")
        other.value("SELECT 1")
        return bool(session.value("SELECT current_setting('posthouse.probe', true)") != mark)
    except psycopg.Error:  # the session has lost its prepared statement, or the other client has the only session
        return True
    finally:
        other.close()


def _unusable(url: str, reason: str) -> PosthouseError:
    hint = "Give the URL of a database in PostgreSQL 14 or newer, made with ENCODING 'UTF8'."
    return error("store_unusable", path=shown_url(url), reason=reason, hint=hint)


#: SQLSTATE or its class -> code of the registry; everything else is a defect of a statement
_TRANSIENT_CLASSES = ("08", "40", "53", "55", "57")
_FULL = ("53100", "53200")
_DAMAGED = ("XX001", "XX002")


def translate(exc: psycopg.Error, url: str) -> PosthouseError:
    """Return the posthouse error for a failure of the server or of the connection to it."""
    state, reason = exc.sqlstate, str(exc).strip().replace("\n", " ")
    if state in _DAMAGED:
        return error("store_damaged", path=shown_url(url), reason=reason)
    if state in _FULL:
        return error("store_full", reason=reason)
    if state == "57014":
        return error("store_read_timeout", seconds=_READ_MS / 1000)
    if state is None or state.startswith(_TRANSIENT_CLASSES) or state in ("25006", "25P03"):
        return error("store_unavailable", url=shown_url(url), reason=reason)
    if state.startswith(("28", "3D", "42501")):
        return _unusable(url, reason)
    return error("internal", reason=reason)


def is_of_server(exc: BaseException) -> bool:
    """Return True if the server or the network failed, not the statement or its values."""
    if not isinstance(exc, psycopg.Error):
        return False
    state = exc.sqlstate
    if state is None:
        return isinstance(exc, psycopg.OperationalError)
    return state.startswith(_TRANSIENT_CLASSES) or state in ("25006", "25P03", *_DAMAGED)
