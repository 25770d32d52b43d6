"""A store's file, read by ADBC: read-only, in short ranges, in processes of Spark's workers only.

Never call this in a process that has the store open through apsw: two SQLite libraries in one process lose rows. Each
range is a transaction of its own, so that the store's checkpoints are never held up. A restore cannot swap the file
meanwhile: the store's lock is held shared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from posthouse.journal.marker import refuse_half_restored
from posthouse.model.errors import error
from posthouse.pipeline.source.feeds import Feed
from posthouse.pipeline.source.history import Ancestor, History, lineage_of

if TYPE_CHECKING:
    import pyarrow as pa

    from posthouse.pipeline.source.conditions import Condition

_BUSY_MS = 5_000  # the last to close a store has it alone for a moment, and so has the first to open it after a crash
RANGE_ROWS = 16_384  # about 5 MB and 30 ms: short for the store, long enough to be fast
APPLICATION_ID = 0x706F7374  # what posthouse.sqlite writes into its files

#: component whose schema the feeds are made of -> where its migrations lie in the package; not imported, for their
#: packages load apsw
MIGRATIONS = {
    "journal": "journal",
    "relay": "relay/store/sqlite",
    "deliveries": "relay/deliver/sqlite",
    "locks": "relay/locks",
    "bus": "bus",
    "outbox": "daemon/outbox",
    "inbox": "daemon/inbox",
}
_KINDS = ("relay", "bus", "outbox", "inbox")


def known_version(component: str) -> int | None:
    """Return the newest schema of a component that this posthouse has; None for one that no feed reads."""
    folder = MIGRATIONS.get(component)
    if folder is None:
        return None
    return sum(file.name.endswith(".sql") for file in files("posthouse").joinpath(folder, "migrations").iterdir())


class FileStore:
    """An open store; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened = ExitStack()
        self._db: Any = None

    def __enter__(self) -> Self:
        from adbc_driver_manager import Error
        from adbc_driver_sqlite import dbapi

        from posthouse.sqlite.presence import looking

        refuse_half_restored(self.path)
        with self._opened:
            self._opened.enter_context(looking(self.path))
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
        """Return what the store holds now, in one snapshot; refuse a file that is not ours or is newer."""
        with self._snapshot():
            return self._history()

    def _history(self) -> History:
        kind = self._kind()
        epochs = [
            Ancestor(row["epoch"], row["parent_epoch"], row["fork_seq"], row["started_at_ns"])
            for row in self._rows("SELECT epoch, parent_epoch, fork_seq, started_at_ns FROM epochs ORDER BY number")
        ]
        if not epochs:
            raise error("source_damaged", url=str(self.path), reason="it has no epoch")
        (state,) = self._rows(
            "SELECT pruned_through, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'journal'), 0) AS head"
            " FROM journal_state"
        )
        return History(kind, lineage_of(epochs), state["pruned_through"], state["head"])

    def read(
        self,
        feed: Feed,
        after: int,
        to: int,
        columns: Sequence[str] | None = None,
        conditions: Collection[Condition] = (),
    ) -> Iterator[pa.Table]:
        """Yield the rows (after, to] of a feed in seq order, a short range at a time."""
        chosen = tuple(columns or feed.columns)
        schema = feed.schema(chosen)
        where, values = _where(feed, conditions)
        text = f"SELECT {', '.join(chosen)} FROM {feed.view} WHERE seq > ? AND seq <= ?{where} ORDER BY seq"
        for low in range(after, to, RANGE_ROWS):
            found = self._table(text, (low, min(low + RANGE_ROWS, to), *values))
            # a column of NULLs alone comes untyped
            yield found.cast(schema) if found.schema != schema else found

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let several statements see the same rows; at any other time a statement is a transaction of its own."""
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
            raise error("source_invalid", url=str(self.path), reason="it is not a store of posthouse")
        versions = {row["component"]: row["version"] for row in self._rows("SELECT * FROM schema_versions")}
        for component, version in versions.items():
            known = known_version(component)
            if known is not None and version > known:
                raise error("source_newer", url=str(self.path), component=component, found=version, known=known)
        kinds = [kind for kind in _KINDS if kind in versions]
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
                # Types are taken from the first batch: one that holds the whole range cannot meet a surprise later.
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(RANGE_ROWS)})
                cursor.execute(text, tuple(values))
                return cursor.fetch_arrow_table()
        except Error as failure:
            raise self._damaged(failure) from failure

    def _damaged(self, failure: Exception) -> Exception:
        return error("source_damaged", url=str(self.path), reason=str(failure).strip().partition("\n")[0])


def _where(feed: Feed, conditions: Collection[Condition]) -> tuple[str, list[Any]]:
    parts: list[str] = []
    values: list[Any] = []
    if feed.glob is not None:
        parts.append("type GLOB ?")
        values.append(feed.glob)
    for each in conditions:
        parts.append(each.text)
        values.extend(each.values)
    return "".join(f" AND {part}" for part in parts), values
