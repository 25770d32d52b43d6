"""What takes the space of a relay's store: its tables with their indexes, free pages, and the content of each mesh.

Measuring reads the store and changes nothing, so the relay may run; on SQLite it reads the whole file. Sizes are those
of whole pages: the empty half of a half-empty page counts towards its table.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec

from posthouse.postgresql.store_url import shown_url
from posthouse.relay.store.sqlite.queries import EVENTS_SQL
from posthouse.sqlite.connection import open_reader, translate
from posthouse.sqlite.store_lock import shared_store_lock


class TableSize(msgspec.Struct, frozen=True):
    """A table with its indexes."""

    table: str
    bytes: int


class MeshSize(msgspec.Struct, frozen=True):
    """The events of a mesh that have content, and the bytes of their JSON."""

    mesh: str
    events: int
    bytes: int


class StoreSize(msgspec.Struct, frozen=True):
    """The size of a store."""

    store: str
    #: of all tables and free pages, without the write-ahead log
    bytes: int
    #: that `relay compact` can give back
    free_bytes: int
    #: whether it can do so while the relay runs
    is_incremental: bool
    #: the largest first
    tables: list[TableSize]
    #: the largest first
    meshes: list[MeshSize]


def measure_file(path: Path) -> StoreSize:
    """Return the size of a store in a SQLite file."""
    with shared_store_lock(path):
        db = open_reader(path)
        try:
            db.execute("BEGIN")
            tables: Any = db.execute(EVENTS_SQL.table_sizes).fetchall()
            meshes: Any = db.execute(EVENTS_SQL.all_usage).fetchall()
            page_bytes, pages, free = (int(db.pragma(name)) for name in ("page_size", "page_count", "freelist_count"))
            is_incremental = db.pragma("auto_vacuum") != 0
        except apsw.Error as exc:
            raise translate(exc, str(path)) from exc
        finally:
            db.close()
    return _size(str(path), page_bytes * pages, page_bytes * free, is_incremental, tables, meshes)


def measure_server(url: str) -> StoreSize:
    """Return the size of a store in a database of PostgreSQL."""
    from posthouse.postgresql.server_connection import open_reader_session
    from posthouse.relay.store.postgresql.pg_queries import EVENTS_SQL as SERVER_SQL

    session = open_reader_session(url)
    try:
        tables, meshes = session.rows(SERVER_SQL.table_sizes), session.rows(SERVER_SQL.all_usage)
        total = int(session.value("SELECT pg_database_size(current_database())"))
    finally:
        session.close()
    return _size(shown_url(url), total, 0, False, tables, meshes)


def _size(store: str, total: int, free: int, is_incremental: bool, tables: list[Any], meshes: list[Any]) -> StoreSize:
    return StoreSize(
        store,
        total,
        free,
        is_incremental,
        sorted([TableSize(*row) for row in tables], key=lambda each: -each.bytes),
        sorted([MeshSize(*row) for row in meshes], key=lambda each: -each.bytes),
    )
