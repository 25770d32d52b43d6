"""What `pipeline query` answers and what it refuses: a table of statements, through the real parser of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.pipeline import query
from posthouse.pipeline.connector.source_access import Access
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.query import ask
from posthouse.pipeline.query_guard import check_question
from posthouse.pipeline.run.copy_feeds import Copier
from tests.pipeline.stores import GrowingStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")
TABLES = frozenset({"t", "u"})

ALLOWED = (
    "SELECT a, count(*) FROM t WHERE a IN (SELECT b FROM u) GROUP BY a HAVING count(*) > 1 ORDER BY 1 LIMIT 5",
    "WITH x AS (SELECT 1 AS a) SELECT * FROM x JOIN t USING (a)",
    "WITH x AS (SELECT 1 AS a), y AS (SELECT * FROM x) SELECT * FROM (WITH z AS (SELECT 2) SELECT * FROM z), y",
    "SELECT * FROM (WITH z AS (SELECT * FROM t) SELECT * FROM z) WHERE EXISTS (WITH q AS (TABLE u) SELECT * FROM q)",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
    "SELECT * FROM T",
    "TABLE t",
    "FROM t SELECT a",
    "FROM t |> WHERE a > 1 |> SELECT a",
    "SELECT * EXCEPT (a) FROM t",
    "(SELECT 1)",
    "VALUES (1, 2), (3, 4)",
    "SELECT 1 UNION ALL SELECT 2 EXCEPT SELECT 3 INTERSECT SELECT 4",
    "SELECT * FROM range(5)",
    "SELECT * FROM t LATERAL VIEW explode(c) z AS v",
    "SELECT * FROM t, LATERAL (SELECT a)",
    "SELECT * FROM t TABLESAMPLE (10 PERCENT)",
    "SELECT * FROM t PIVOT (sum(a) FOR b IN (1, 2))",
    "SELECT * FROM t UNPIVOT (v FOR k IN (a, b))",
    "SELECT row_number() OVER w FROM t WINDOW w AS (PARTITION BY a ORDER BY b)",
    "SELECT /*+ BROADCAST(t) */ DISTINCT a FROM t",
    "SELECT transform(array(1), x -> x + 1), CASE WHEN a THEN 1 END, cast(b AS int), m['k'], s.f FROM t",
    "SELECT date_trunc('day', at), collect_list(a) FILTER (WHERE b > 1) FROM t GROUP BY ROLLUP (1)",
    "SELECT 'reflect(INSERT INTO t)' AS text FROM t",
    "EXPLAIN SELECT * FROM t",
    "EXPLAIN EXTENDED WITH x AS (SELECT 1) SELECT * FROM x",
    "SHOW TABLES",
    "SHOW TABLES LIKE 'b*'",
    "DESCRIBE t",
    "DESC TABLE EXTENDED t",
    "DESC t a",
    "DESCRIBE QUERY SELECT * FROM t",
)
REFUSED = (
    "WITH x AS (SELECT 1 AS a) INSERT OVERWRITE DIRECTORY '/tmp/x' USING parquet SELECT * FROM x",
    "INSERT OVERWRITE LOCAL DIRECTORY '/tmp/x' USING csv SELECT * FROM t",
    "INSERT INTO t SELECT 1",
    "FROM t INSERT INTO u SELECT *",
    "SELECT TRANSFORM(a) USING 'touch /tmp/x' FROM t",
    "FROM t MAP a USING 'cat' AS b",
    "SELECT * FROM (SELECT TRANSFORM(a) USING 'cat' FROM t)",
    "SELECT reflect('java.lang.System', 'exit', 0)",
    "SELECT REFLECT('java.lang.System', 'exit', 0) FROM t",
    "SELECT `java_method`('java.lang.System', 'exit', 0)",
    "SELECT max(try_reflect('java.lang.System', 'exit', 0)) FROM t",
    "SELECT a FROM t WHERE a = (SELECT reflect('java.lang.System', 'exit', 0))",
    "SELECT transform(array(1), x -> reflect('java.lang.System', 'exit', x))",
    "SELECT 1 FROM t WINDOW w AS (PARTITION BY reflect('java.lang.System', 'exit', 0))",
    "SELECT 1 FROM t WINDOW w AS (PARTITION BY (SELECT * FROM parquet.`/etc`))",
    "VALUES (reflect('java.lang.System', 'exit', 0))",
    "FROM t |> SET a = reflect('java.lang.System', 'exit', 0)",
    "FROM t |> SET a = (SELECT TRANSFORM(b) USING 'cat' FROM u)",
    "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'exit', 0)",
    "SELECT system.builtin.reflect('java.lang.System', 'exit', 0)",
    "SELECT * FROM IDENTIFIER('par' || 'quet.`/etc`')",
    "SELECT * FROM parquet.`/etc`",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT (SELECT max(a) FROM csv.`/etc/passwd`)",
    "SELECT * FROM t LATERAL VIEW json_tuple(a, 'b') z",
    "SELECT * FROM read_files('/etc')",
    "SELECT * FROM spark_catalog.default.t",
    "SELECT * FROM secrets",
    "WITH x AS (SELECT * FROM secrets) SELECT * FROM x",
    "SELECT * FROM t TIMESTAMP AS OF '2020-01-01'",
    "EXPLAIN INSERT INTO t SELECT 1",
    "EXPLAIN SELECT TRANSFORM(a) USING 'cat' FROM t",
    "EXECUTE IMMEDIATE 'DROP TABLE t'",
    "BEGIN SELECT 1; END",
    "SET spark.sql.runSQLOnFiles = true",
    "RESET",
    "ADD JAR '/tmp/x.jar'",
    "CREATE TEMPORARY FUNCTION f AS 'x'",
    "CREATE TABLE x AS SELECT 1",
    "CREATE OR REPLACE TEMPORARY VIEW t AS SELECT 1",
    "CACHE TABLE x AS SELECT 1",
    "ANALYZE TABLE t COMPUTE STATISTICS",
    "REFRESH TABLE t",
    "DROP VIEW t",
    "SHOW FUNCTIONS",
    "SHOW TABLES IN other",
    "DESCRIBE secrets",
    "DESCRIBE FUNCTION reflect",
)


def refusal(spark: SparkSession, sql: str) -> str | None:
    try:
        check_question(spark, sql, TABLES)
    except PosthouseError as failure:
        return failure.code
    return None


def test_questions_over_the_lake_are_allowed(spark: SparkSession) -> None:
    assert {sql: code for sql in ALLOWED if (code := refusal(spark, sql)) is not None} == {}


def test_everything_else_is_refused(spark: SparkSession) -> None:
    assert {sql: code for sql in REFUSED if (code := refusal(spark, sql)) != "query_refused"} == {}


def test_two_statements_at_once_are_not_parsed(spark: SparkSession) -> None:
    assert refusal(spark, "SELECT 1; DROP TABLE t") == "query_failed"


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("guard")
    lake = Lake(folder / "lake")
    store = GrowingStore(folder / "relay")
    store.grow(3)
    Copier(spark, lake, Access(str(store.path)), store.clock, 1000, lambda _step: None).copy()
    return lake


def test_hostile_questions_leave_no_trace(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "kept").write_text("kept")
    for sql in (
        f"WITH x AS (SELECT 1 AS a) INSERT OVERWRITE DIRECTORY '{victim}' USING parquet SELECT * FROM x",
        f"SELECT TRANSFORM(seq) USING 'rm -r {victim}' FROM bronze_journal",
    ):
        with pytest.raises(PosthouseError) as refused:
            ask(spark, lake, sql)
        assert refused.value.code == "query_refused"
    assert (victim / "kept").read_text() == "kept"


def test_control_the_same_statement_deletes_the_directory_without_the_guard(
    spark: SparkSession, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "lost").write_text("lost")
    spark.sql(f"WITH x AS (SELECT 1 AS a) INSERT OVERWRITE DIRECTORY '{victim}' USING parquet SELECT * FROM x")
    assert not (victim / "lost").exists()


def test_behind_the_guard_the_session_of_a_question_reads_no_files_and_calls_no_java(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "check_question", lambda *_given: None)
    with pytest.raises(PosthouseError) as refused:
        ask(spark, lake, "SELECT * FROM text.`/etc/passwd`")
    assert refused.value.code == "query_failed"
    question = "SELECT reflect('java.lang.System', 'getProperty', 'user.home')"
    hidden = "VALUES (1) AS t(a) |> SET a = reflect('java.lang.System', 'getProperty', 'user.home')"
    for sql in (question, hidden, f"SELECT (SELECT max(a) FROM ({hidden}))"):
        with pytest.raises(PosthouseError, match="may not call Java"):
            ask(spark, lake, sql)
    assert spark.sql(question).count() == 1, "control: the outer session calls Java"
    assert spark.sql("SELECT * FROM text.`/etc/passwd` LIMIT 1").count() == 1, "control: the outer session reads them"
