"""Bulk inserts."""

from __future__ import annotations

import apsw
from hypothesis import given
from hypothesis import strategies as st

from posthouse.sqlite.transaction import BulkInsert


@given(st.integers(min_value=0, max_value=300))
def test_bulk_insert_writes_any_number_of_rows_in_order(count: int) -> None:
    with apsw.Connection(":memory:") as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, a, b)")
        rows = [(n, str(n)) for n in range(count)]
        BulkInsert("INSERT INTO t (a, b) VALUES", 2).run(db, rows)
        assert list(db.execute("SELECT a, b FROM t ORDER BY id")) == rows
    db.close()
