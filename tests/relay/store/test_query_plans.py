"""How filters are answered on SQLite: by an index, and without sorting whole events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.filters import Filter
from posthouse.relay.store.event_rows import Scope
from posthouse.relay.store.query_pages import Range
from posthouse.relay.store.sqlite.queries import plan_filter
from posthouse.relay.store.sqlite.store import FILE_NAME, SqliteStore
from posthouse.sqlite.connection import open_reader
from tests.relay.authors import ALICE, BOB


@pytest.fixture
def db(tmp_path: Path) -> Iterator[apsw.Connection]:
    SqliteStore(tmp_path / FILE_NAME, FakeClock()).close()
    connection = open_reader(tmp_path / FILE_NAME)
    yield connection
    connection.close()


FILTERS = {
    "all": Filter(),
    "ids": Filter(ids=frozenset({"0" * 64, "1" * 64})),
    "kind": Filter(kinds=frozenset({1})),
    "kinds": Filter(kinds=frozenset({1, 2, 3})),
    "authors": Filter(authors=frozenset({ALICE.node, BOB.node})),
    "tags": Filter(tags={"t": frozenset({"a", "b"})}),
    "authors and kinds": Filter(authors=frozenset({ALICE.node, BOB.node}), kinds=frozenset({1, 2})),
}


@pytest.mark.parametrize("is_descending", [False, True])
@pytest.mark.parametrize("name", FILTERS)
def test_pages_are_read_in_order_by_an_index_and_not_sorted(
    db: apsw.Connection, name: str, is_descending: bool
) -> None:
    plan = plan_filter(db, FILTERS[name], Scope(ALICE.node, frozenset({"main"})), 0, (0, 100))
    plan = replace(plan, indexed_through=50)  # one half by the index, the other event by event
    steps: list[str] = []

    def explain(cursor: apsw.Cursor, statement: str, bindings: object) -> bool:
        if not statement.startswith("EXPLAIN"):
            explained = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", bindings)  # type: ignore[arg-type]
            steps.extend(step for *_, step in explained)
        return True

    db.exec_trace = explain
    plan.rows(db, Range(0, 100, is_descending), 10, 1_000_000)
    db.exec_trace = None
    assert steps
    assert not [step for step in steps if "FOR ORDER BY" in step]
    assert name == "all" or not [step for step in steps if step.startswith("SCAN e")]
