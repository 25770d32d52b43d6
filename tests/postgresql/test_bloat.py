"""Rows that change with every group would bloat while a snapshot is open: a store on PostgreSQL has none."""

from __future__ import annotations

import asyncio
import time

import psycopg
import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.store.event_rows import Usage
from posthouse.relay.store.postgresql import pg_retention
from posthouse.relay.store.postgresql.pg_store import PgStore
from tests.relay.authors import ALICE
from tests.relay.both_stores import server_findings
from tests.relay.store.contract import add

GROUPS = 20
PATIENCE_S = 20
_COUNTS = "SELECT relname, n_tup_ins, n_tup_upd FROM pg_stat_user_tables"
_RESET = "SELECT pg_stat_reset()"


async def write_groups(url: str) -> Usage:
    """Commit groups of one event each, and return the usage of the mesh."""
    store = await asyncio.to_thread(PgStore, url, FakeClock())
    try:
        for _ in range(GROUPS):
            await add(store, ALICE.event())
        return (await store.usage())["main"]
    finally:
        await asyncio.to_thread(store.close)


def counts_of(url: str) -> dict[str, tuple[int, int]]:
    """Return how many rows of each table were inserted and updated, once the server has counted all groups."""
    with psycopg.connect(url, autocommit=True) as connection:
        until = time.monotonic() + PATIENCE_S
        while True:
            found = {name: (inserted, updated) for name, inserted, updated in connection.execute(_COUNTS)}
            if found["events"][0] >= GROUPS or time.monotonic() > until:
                return found
            time.sleep(0.05)


async def test_no_table_has_a_row_that_every_group_updates(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_RESET)
    await write_groups(database)
    counts = await asyncio.to_thread(counts_of, database)
    assert counts["events"][0] == GROUPS
    assert {name: updated for name, (_inserted, updated) in counts.items() if updated >= GROUPS} == {}


async def test_usage_of_meshes_is_right_while_changes_wait_and_when_they_are_added_up(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await write_groups(database)
    monkeypatch.setattr(pg_retention, "_USAGE_CHANGES_MOST", 3)
    after = await write_groups(database)
    assert (after.events, after.bytes) == (2 * before.events, 2 * before.bytes)
    assert server_findings(database) == []
    with psycopg.connect(database) as connection:
        (waiting,) = connection.execute("SELECT count(*) FROM usage_changes").fetchone() or (-1,)
    assert 0 < waiting <= 3
