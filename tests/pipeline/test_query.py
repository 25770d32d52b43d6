"""The warm session: questions over a socket that only its owner can reach."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.query import QueryServer, ask, ask_server
from posthouse.pipeline.run.copy_feeds import Copier
from tests.pipeline.stores import GrowingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / ("deep" * 30) / "lake")  # longer than a socket address may be
    store = GrowingStore(tmp_path / "relay")
    store.grow(12)
    Copier(spark, lake, Access(str(store.path)), store.clock, 1000, lambda _step: None).copy()
    return lake


@pytest.fixture
def server(spark: SparkSession, lake: Lake) -> Iterator[QueryServer]:
    server = QueryServer(spark, lake)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.close()
    thread.join(30)
    assert not thread.is_alive()


def test_a_question_is_answered_by_the_server_as_without_it(
    spark: SparkSession, lake: Lake, server: QueryServer
) -> None:
    sql = "SELECT type, count(*) AS n, max(seq) AS last FROM bronze_journal GROUP BY type ORDER BY type"
    direct = ask(spark, lake, sql, 100)
    assert ask_server(lake.path, sql, 100) == direct
    assert direct.rows == [["config.changed", 8, 11], ["refused", 4, 12]]
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600


def test_a_question_that_is_wrong_or_would_change_something_is_refused(lake: Lake, server: QueryServer) -> None:
    for sql, code in (
        ("SELECT nonsense FROM bronze_journal", "query_failed"),
        ("SELEKT 1", "query_failed"),
        ("DROP VIEW bronze_journal", "query_refused"),
        ("SELECT * FROM nowhere", "query_refused"),
    ):
        with pytest.raises(PosthouseError) as refused:
            ask_server(lake.path, sql, 10)
        assert refused.value.code == code
    cut = ask_server(lake.path, "SELECT seq FROM bronze_journal ORDER BY seq", 5)
    assert cut is not None and (cut.rows, cut.is_cut) == ([[1], [2], [3], [4], [5]], True)


def test_a_second_server_is_refused_and_a_killed_ones_socket_is_replaced(
    spark: SparkSession, lake: Lake, server: QueryServer
) -> None:
    with pytest.raises(PosthouseError) as refused:
        QueryServer(spark, lake)
    assert refused.value.code == "lake_busy"
    other = Lake(lake.path.with_name("other"))
    QueryServer(spark, other)._server.server_close()  # as a killed server leaves it: no process listens
    assert ask_server(other.path, "SELECT 1", 1) is None
    QueryServer(spark, other)._server.server_close()


def test_without_a_server_nobody_answers(tmp_path: Path) -> None:
    assert ask_server(tmp_path, "SELECT 1", 1) is None
