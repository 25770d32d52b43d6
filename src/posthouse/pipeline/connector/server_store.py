"""Read the feeds of a relay's store in PostgreSQL through ADBC. Runs in Spark workers, each with a range of seqs.

The views are those of a store file, so the lake gets the same tables. Each range is one statement in a session that
cannot write. The password is never part of the address, which the lake keeps: libpq finds it in PGPASSWORD or in a
password file of each machine. A page that fails is not retried here, because Spark runs the task again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from importlib.resources import files
from itertools import count
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.connector.feeds import SELECT_EPOCHS, Feed, read_ranges
from posthouse.pipeline.epochs import Ancestor, History, lineage_of

if TYPE_CHECKING:
    import pyarrow as pa

    from posthouse.pipeline.connector.feeds import Condition

SCHEMES = ("postgresql", "postgres")
_MIGRATIONS = "relay/store/postgresql/schema/migrations"
_STATE = (
    "SELECT pruned_through, coalesce((SELECT max(seq) FROM journal), pruned_through) AS head,"
    " pg_is_in_recovery() AS is_standby FROM journal_state"
)
_VERSION = "SELECT version::bigint AS version FROM schema_versions WHERE component = 'relay'"


def parse_server(text: str) -> str:
    """Return the address of a database unchanged; refuse a password in it."""
    if urlsplit(text).password is not None or "password=" in text:
        reason = "it holds a password, which the lake would keep; put it into PGPASSWORD or a password file"
        raise error("source_invalid", url=text.partition("://")[0] + "://...", reason=reason)
    return text


class ServerStore:
    """A relay's store in a database; a context manager."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._db: Any = None

    def __enter__(self) -> Self:
        try:
            from adbc_driver_manager import Error
            from adbc_driver_postgresql import dbapi
        except ImportError as failure:
            raise error("source_invalid", url=self.url, reason=f"its driver is not installed: {failure}") from failure
        try:
            self._db = dbapi.connect(self.url, autocommit=True)
            with self._db.cursor() as cursor:
                cursor.execute("SET default_transaction_read_only = on")
        except Error as failure:
            raise self._failed(failure) from failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._db is not None:
            self._db.close()

    def history(self) -> History:
        """Return the store's history; fail if the database holds no store, or another version of it."""
        known = sum(file.name.endswith(".sql") for file in files("posthouse").joinpath(_MIGRATIONS).iterdir())
        found = sum(row["version"] for row in self._rows(_VERSION))
        if found > known:
            raise error("source_newer", url=self.url, component="relay", found=found, known=known)
        if found < known:
            reason = f"its schema has version {found}, not {known}: start a relay of this version on it once"
            raise error("source_invalid", url=self.url, reason=reason)
        (state,) = self._rows(_STATE)  # read before the epochs, so a new epoch begins at this head or above
        epochs = [Ancestor(*row.values()) for row in self._rows(SELECT_EPOCHS)]
        if not epochs:
            raise error("source_invalid", url=self.url, reason="it holds no journal")
        return History("relay", lineage_of(epochs), state["pruned_through"], state["head"], state["is_standby"])

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

    def _rows(self, text: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._table(text, ()).to_pylist()
        return rows

    def _table(self, text: str, values: Sequence[Any]) -> pa.Table:
        from adbc_driver_manager import Error

        try:
            with self._db.cursor() as cursor:
                cursor.execute(_numbered(text), tuple(values) or None)
                return cursor.fetch_arrow_table()
        except Error as failure:
            raise self._failed(failure) from failure

    def _failed(self, failure: Exception) -> PosthouseError:
        return error("source_damaged", url=self.url, reason=str(failure).strip().partition("\n")[0])


def _numbered(text: str) -> str:
    """Return a statement with PostgreSQL's numbered placeholders."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", text)
