"""The warm session: questions over a socket that only its owner can reach."""

from __future__ import annotations

import logging
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.audit.finding import read_last_audit
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.query import ask
from posthouse.pipeline.run.copy_feeds import Copier
from posthouse.pipeline.serve import (
    AuditRequest,
    QueryServer,
    WhatIfRequest,
    ask_server,
    ask_server_for,
    socket_address,
)
from posthouse.pipeline.tables.columns import comment
from tests.pipeline.stores import GrowingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("query")
    lake = Lake(folder / ("deep" * 30) / "lake")  # longer than a socket address may be
    store = GrowingStore(folder / "relay")
    store.grow(12)
    Copier(spark, lake, Access(str(store.path)), store.clock, 1000, lambda _step: None).copy()
    return lake


@pytest.fixture(scope="module")
def server(spark: SparkSession, lake: Lake) -> Iterator[QueryServer]:
    server = QueryServer(spark, lake)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield server
    server.close()
    thread.join(30)
    assert not thread.is_alive()


def wait_until(is_true: Callable[[], bool], patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def test_describe_tells_what_each_column_means(spark: SparkSession, lake: Lake) -> None:
    for name in ("bronze_journal", "silver_messages"):  # the second has no file yet
        rows = ask(spark, lake, f"DESCRIBE {name}").rows
        assert {column: text for column, _type, text in rows} == {column: comment(name, column) for column, *_ in rows}
        assert "lost_by_restore" in {row[0] for row in rows}


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


def test_a_long_question_does_not_hold_up_a_short_one(spark: SparkSession, lake: Lake, server: QueryServer) -> None:
    """The long one is a task of hours; the short one is answered while it runs, then the long one is cancelled."""
    problems: list[PosthouseError] = []

    def ask_long() -> None:
        try:
            ask_server(lake.path, "SELECT count(*) FROM range(0, 1000000000000, 1, 1) WHERE sqrt(id) = 7.5", 1)
        except PosthouseError as failure:
            problems.append(failure)

    thread = threading.Thread(target=ask_long)
    thread.start()
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: len(tracker.getActiveJobsIds()) > 0)
    short = ask_server(lake.path, "SELECT 1 AS one", 1)
    assert short is not None and short.rows == [[1]]
    assert thread.is_alive()
    spark.sparkContext.cancelAllJobs()
    thread.join(60)
    assert [failure.code for failure in problems] == ["query_failed"]
    assert "cancelled" in str(problems[0])


def test_a_question_whose_asker_goes_away_is_cancelled(
    spark: SparkSession, lake: Lake, server: QueryServer, capfd: pytest.CaptureFixture[str]
) -> None:
    tracker = spark.sparkContext.statusTracker()
    sql = "SELECT count(*) FROM range(0, 1000000000000, 1, 1) WHERE sqrt(id) = 7.5"
    try:
        with socket_address(lake.path) as address, socket.socket(socket.AF_UNIX) as asker:
            asker.connect(address)
            asker.sendall(msgspec.json.encode({"sql": sql, "limit": 1}) + b"\n")
            wait_until(lambda: len(tracker.getActiveJobsIds()) > 0)
        wait_until(lambda: len(tracker.getActiveJobsIds()) == 0)
    finally:
        spark.sparkContext.cancelAllJobs()
    with socket_address(lake.path) as address, socket.socket(socket.AF_UNIX) as asker:
        asker.connect(address)
        asker.sendall(b'{"sql": "SELECT count(*) FROM bronze_journal", "limit": 1}\n')
        asker.shutdown(socket.SHUT_WR)  # it sends no more, and waits
        assert b"[[12]]" in asker.makefile("rb").readline()
    assert "Traceback" not in capfd.readouterr().err


def test_audit_and_simulation_run_in_the_session_of_the_server(lake: Lake, server: QueryServer) -> None:
    audited = ask_server_for(lake.path, audit=AuditRequest())
    kept = read_last_audit(lake.path)
    assert kept is not None and (kept.records, kept.total) == (12, 0)
    assert (audited["records"], audited["seals"], audited["counts"]) == (12, 2, {})
    simulated = ask_server_for(lake.path, whatif=WhatIfRequest(b'{"budget": {"maxHops": 3}}'))
    assert (simulated["messages"], simulated["would_be_refused"], simulated["totals"]) == (0, 0, [])
    with pytest.raises(PosthouseError) as refused:
        ask_server_for(lake.path, whatif=WhatIfRequest(b"{"))
    assert refused.value.code == "reliability_invalid"


def test_failure_while_spark_runs_names_its_real_cause_and_nothing_else(spark: SparkSession, lake: Lake) -> None:
    logged = StringIO()
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).addHandler(logging.StreamHandler(logged))
    for sql, cause in (
        ("SELECT raise_error('the real cause') FROM bronze_journal", "the real cause"),
        ("SELECT 1 / (seq - seq) FROM bronze_journal", "DIVIDE_BY_ZERO"),
        ("SELECT CAST(type AS INT) FROM bronze_journal", "CAST_INVALID_INPUT"),
        ("SELECT no_such FROM bronze_journal", "UNRESOLVED_COLUMN"),
    ):
        with pytest.raises(PosthouseError) as failed:
            ask(spark, lake, sql, 10)
        assert failed.value.code == "query_failed" and cause in str(failed.value)
        assert "Job aborted" not in str(failed.value) and "org.apache" not in str(failed.value)
    assert logged.getvalue() == "", "pyspark adds a page of JSON with a stack trace"


def test_without_a_server_nobody_answers(tmp_path: Path) -> None:
    assert ask_server(tmp_path, "SELECT 1", 1) is None
