"""Read the feeds of one source: a store's file through ADBC, or a relay through /v1/export. Runs in Spark workers.

Never open a file here in a process that has the same store open through apsw: two SQLite libraries in one process
lose rows. Each range of a file is its own transaction, so that reading does not delay the store's checkpoints; the
store's lock is held shared, so that a restore cannot replace the file. Reading a relay uses a token that is valid
for an hour, never a key. A page that fails is not retried here, because Spark runs the task again.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode, urlsplit

from posthouse.journal.cursor import Cursor
from posthouse.model.errors import PosthouseError, error, error_from_problem
from posthouse.pipeline.connector.feeds import JOURNAL, RANGE_ROWS, SELECT_EPOCHS, STORES, Feed, read_ranges
from posthouse.pipeline.epochs import Ancestor, History, lineage_of
from posthouse.sqlite.store_lock import refuse_half_restored

if TYPE_CHECKING:
    import pyarrow as pa

    from posthouse.pipeline.connector.feeds import Condition


_BUSY_MS = 5_000  # SQLite locks a store briefly when its last connection closes, and on recovery after a crash
APPLICATION_ID = 0x706F7374  # the application_id that posthouse.sqlite writes to its files
COPY_NAME = "follower.db"  # the file name that posthouse.relay.store uses for a follower's copy of a store
#: Component that the feeds read -> folder of its migrations. The folders are not imported: their packages load apsw.
MIGRATIONS = {
    "journal": "journal",
    "relay": "relay/store/sqlite/schema/events",
    "deliveries": "relay/store/sqlite/schema/deliveries",
    "locks": "relay/store/sqlite/schema/locks",
    "bus": "bus",
    "outbox": "daemon/outbox",
    "inbox": "daemon/inbox",
}


def known_version(component: str) -> int | None:
    """Return the newest schema version of a component that this code knows; None if no feed reads the component."""
    folder = MIGRATIONS.get(component)
    if folder is None:
        return None
    return sum(file.name.endswith(".sql") for file in files("posthouse").joinpath(folder, "migrations").iterdir())


class FileStore:
    """A store file; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened = ExitStack()
        self._db: Any = None

    def __enter__(self) -> Self:
        from adbc_driver_manager import Error
        from adbc_driver_sqlite import dbapi

        from posthouse.sqlite.store_lock import shared_store_lock

        refuse_half_restored(self.path)
        with self._opened:
            self._opened.enter_context(shared_store_lock(self.path))
            try:
                self._db = dbapi.connect(f"file:{quote(str(self.path))}?mode=ro", autocommit=True)
            except Error as failure:
                raise self._damaged(failure) from failure
            self._opened.callback(self._db.close)
            self._rows(f"PRAGMA busy_timeout = {_BUSY_MS}")
            self._opened = self._opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def history(self) -> History:
        """Return the store's history from one snapshot; fail if the file is not a store or has a newer schema."""
        with self._snapshot():
            return self._history()

    def _history(self) -> History:
        kind = self._kind()
        epochs = [Ancestor(*row.values()) for row in self._rows(SELECT_EPOCHS)]
        if not epochs:
            raise error("source_damaged", url=str(self.path), reason="it has no epoch")
        (state,) = self._rows(
            "SELECT pruned_through, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0) AS head"
            " FROM journal_state"
        )
        is_standby = self.path.name == COPY_NAME
        return History(kind, lineage_of(epochs), state["pruned_through"], state["head"], is_standby)

    def read(
        self,
        feed: Feed,
        after: int,
        to: int,
        columns: Sequence[str] | None = None,
        conditions: Collection[Condition] = (),
    ) -> Iterator[pa.Table]:
        """Yield the rows (after, to] of a feed in seq order, a range at a time."""
        return read_ranges(self._table, feed, after, to, columns, conditions)

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Run several statements in one read transaction; without it, each statement is its own transaction."""
        connection = self._db.adbc_connection
        connection.set_autocommit(False)
        try:
            yield
        finally:
            connection.rollback()
            connection.set_autocommit(True)

    def _kind(self) -> str:
        (application,) = self._rows("PRAGMA application_id")
        if application["application_id"] != APPLICATION_ID:
            raise error("source_invalid", url=str(self.path), reason="it is not a posthouse store")
        versions = {row["component"]: row["version"] for row in self._rows("SELECT * FROM schema_versions")}
        for component, version in versions.items():
            known = known_version(component)
            if known is not None and version > known:
                raise error("source_newer", url=str(self.path), component=component, found=version, known=known)
        kinds = [kind for kind in STORES if kind in versions]
        if not kinds:
            raise error("source_invalid", url=str(self.path), reason="it holds no journal")
        return kinds[0]

    def _rows(self, text: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._table(text, ()).to_pylist()
        return rows

    def _table(self, text: str, values: Sequence[Any]) -> pa.Table:
        from adbc_driver_manager import Error

        try:
            with self._db.cursor() as cursor:
                # ADBC derives column types from the first batch, so the first batch must hold the whole range.
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(RANGE_ROWS)})
                cursor.execute(text, tuple(values))
                return cursor.fetch_arrow_table()
        except Error as failure:
            raise self._damaged(failure) from failure

    def _damaged(self, failure: Exception) -> Exception:
        return error("source_damaged", url=str(self.path), reason=str(failure).strip().partition("\n")[0])


PAGE_ROWS = 10_000  # the relay's maximum per response
EXTENT_HEADER = "Posthouse-Extent"
_TIMEOUT_S = 60.0


class RelayStore:
    """A relay, read over one HTTP connection; a context manager."""

    def __init__(self, origin: str, token: str, tls_ca: str | None = None) -> None:
        self.origin = origin
        self._token = token
        self._tls_ca = tls_ca
        self._connection: http.client.HTTPConnection | None = None
        self._epoch: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def history(self) -> History:
        """Return the relay's history."""
        _rows, extent = self._page(JOURNAL, None, 1)
        ancestors = [(epoch, shared) for epoch, shared in reversed(extent["ancestors"])]
        names = [epoch for epoch, _ in ancestors] + [extent["epoch"]]
        forks = [0, *(shared for _, shared in ancestors)]
        parents = [None, *names[:-1]]
        lineage = tuple(Ancestor(*each, None) for each in zip(names, parents, forks, strict=True))
        self._epoch = extent["epoch"]
        return History("relay", lineage, extent["pruned_through"], extent["head"])

    def read(self, feed: Feed, after: int, to: int) -> Iterator[pa.Table]:
        """Yield the rows (after, to] of a feed in seq order, a page at a time."""
        import pyarrow.compute as pc

        if self._epoch is None:
            self.history()
        while after < to:
            page, _extent = self._page(feed, str(Cursor(str(self._epoch), after)), min(PAGE_ROWS, to - after))
            if not page.num_rows:
                return
            last = page.column("seq")[-1].as_py()
            yield page if last <= to else page.filter(pc.less_equal(page.column("seq"), to))
            after = last

    def _page(self, feed: Feed, after: str | None, limit: int) -> tuple[pa.Table, dict[str, Any]]:
        import pyarrow as pa

        given = {"limit": str(limit)} | ({} if after is None else {"after": after})
        try:
            data, extent = self._get(f"/v1/export/{feed.name}?{urlencode(given)}")
        except (OSError, http.client.HTTPException) as failure:
            reason = str(failure) or type(failure).__name__
            raise error("relay_unreachable", relay=self.origin, reason=reason) from failure
        if extent is None:
            raise error(
                "answer_invalid", relay=self.origin, reason=f"the header {EXTENT_HEADER} is missing; upgrade the relay"
            )
        with pa.ipc.open_stream(data) as stream:
            return stream.read_all().select(list(feed.columns)).cast(feed.schema()), json.loads(extent)

    def _get(self, target: str) -> tuple[bytes, str | None]:
        connection = self._connect()
        connection.request("GET", target, headers={"Authorization": f"Bearer {self._token}"})
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise self._problem(response.status, data)
        return data, response.getheader(EXTENT_HEADER)

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            parts = urlsplit(self.origin)
            host, port = parts.hostname or "", parts.port
            if parts.scheme == "https":
                context = ssl.create_default_context(cafile=self._tls_ca)
                self._connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        return self._connection

    def _problem(self, status: int, data: bytes) -> PosthouseError:
        try:
            problem = json.loads(data)
        except ValueError:
            problem = None
        failure = error_from_problem(problem)
        reason = f"status {status} without a known error code"
        return failure or error("answer_invalid", relay=self.origin, reason=reason)
