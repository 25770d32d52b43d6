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
from posthouse.pipeline.query_guard import FUNCTIONS, TABLE_FUNCTIONS, check_condition, check_question
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
    "SELECT trim(BOTH 'x' FROM a), substring(a FROM 1 FOR 2), position('a' IN b), extract(year FROM c) FROM t",
    "SELECT timestampadd(DAY, 1, c), timestampdiff(DAY, c, d), current_date, x'1F', v:x.y, a COLLATE UTF8_LCASE FROM t",
    "SELECT a LIKE ANY ('x'), a NOT LIKE ALL ('x'), a ILIKE 'x', a IS DISTINCT FROM b, a IS TRUE, a IS UNKNOWN FROM t",
    "SELECT (a, b) IN (SELECT a, b FROM u), struct(a, b), array(1)[0], a::int, -a, ~a, a & b | c ^ d, a DIV b FROM t",
    "SELECT first(a) IGNORE NULLS OVER (ORDER BY b ROWS BETWEEN 1 PRECEDING AND CURRENT ROW), explode(c) FROM t",
    "SELECT listagg(a, ',') WITHIN GROUP (ORDER BY a), grouping(b) FROM t GROUP BY GROUPING SETS ((b), ())",
    "SELECT a FROM t QUALIFY row_number() OVER (ORDER BY a) = 1 LIMIT ALL OFFSET 2",
    "SELECT mask(a, upperChar => 'X'), from_json(a, 'x INT', map('mode', 'FAILFAST')) FROM t",
    "FROM t |> EXTEND a + 1 AS z |> AGGREGATE sum(a) GROUP BY b |> ORDER BY b |> LIMIT 3",
    "FROM t |> AS x |> JOIN u USING (a) |> DROP a |> WHERE b > 1",
    "WITH csv AS (SELECT 1) SELECT * FROM csv",
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
    "SELECT * FROM (WITH secrets AS (SELECT 1) SELECT * FROM secrets) JOIN secrets",
    "WITH secrets AS (SELECT * FROM secrets) SELECT * FROM secrets",
    "WITH x AS (SELECT * FROM y), y AS (SELECT 1) SELECT * FROM x",
    "SELECT * FROM t TIMESTAMP AS OF '2020-01-01'",
    "SELECT * FROM STREAM t",
    "SELECT * FROM t WITH ('path' = '/etc')",
    "SELECT * FROM explode(TABLE(t))",
    "SELECT * FROM range(0, (SELECT max(a) FROM text.`/etc/passwd`))",
    "SELECT * FROM python_worker_logs()",
    "SELECT * FROM somebodys_table_function(1)",
    "SELECT somebodys_function(a) FROM t",
    "SELECT current_user(), input_file_name() FROM t",
    "SELECT input_file_block_start() FROM t",
    "SELECT from_xml(a, 'b INT', map('rowValidationXSDPath', '/etc/passwd')) FROM t",
    "SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '/etc/passwd'))",
    "SELECT xpath_string(a, 'b') FROM t",
    "SELECT from_avro(a, '\"int\"', map('avroSchemaUrl', '/etc/passwd')) FROM t",
    "SELECT from_protobuf(a, 'M', '/etc/passwd') FROM t",
    "SELECT a FROM t QUALIFY reflect('java.lang.System', 'exit', 0) = 1",
    "SELECT a FROM t LIMIT length(reflect('java.lang.System', 'exit', 0))",
    "SELECT /*+ REPARTITION(reflect('java.lang.System', 'exit', 0)) */ a FROM t",
    "SELECT count(*) FILTER (WHERE xpath_boolean(a, 'b')) FROM t",
    "SELECT listagg(a) WITHIN GROUP (ORDER BY xpath_string(a, 'b')) FROM t",
    "SELECT sum(a) OVER (PARTITION BY xpath_string(a, 'b')) FROM t",
    "SELECT mask(a, upperChar => xpath_string(a, 'b')) FROM t",
    "SELECT * FROM JSON_TABLE('{}', '$' COLUMNS (a INT PATH '$.a'))",
    "FROM t |> SELECT reflect('java.lang.System', 'exit', 0)",
    "FROM t |> EXTEND xpath_string(a, 'b') AS x",
    "FROM t |> AGGREGATE max(xpath_string(a, 'b')) GROUP BY a",
    "FROM t |> JOIN text.`/etc/passwd`",
    "FROM t |> UNION ALL TABLE text.`/etc/passwd`",
    "FROM t |> PIVOT (max(xpath_string(a, 'b')) FOR b IN (1))",
    "EXPLAIN INSERT INTO t SELECT 1",
    "EXPLAIN SELECT TRANSFORM(a) USING 'cat' FROM t",
    "EXECUTE IMMEDIATE 'DROP TABLE t'",
    "BEGIN SELECT 1; END",
    "SET spark.sql.runSQLOnFiles = true",
    "SET VAR x = 1",
    "DECLARE VARIABLE x STRING DEFAULT 'a'",
    "EXECUTE IMMEDIATE 'SELECT 1' INTO x",
    "CALL system.run()",
    "USE x",
    "RESET",
    "ADD JAR '/tmp/x.jar'",
    "ADD FILE '/etc/passwd'",
    "LIST FILES",
    "CREATE TEMPORARY FUNCTION f AS 'x'",
    "CREATE FUNCTION f AS 'x' USING JAR '/tmp/x.jar'",
    "CREATE TEMPORARY FUNCTION f() RETURNS TABLE (a INT) RETURN SELECT 1",
    "CREATE TEMPORARY VIEW v USING csv OPTIONS (path '/etc/passwd')",
    "LOAD DATA INPATH '/etc/passwd' INTO TABLE t",
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
    "SELECT * FROM `text.``/etc/passwd```",
    "WITH `text./etc/passwd` AS (SELECT 1) SELECT * FROM text.`/etc/passwd`",
    "WITH RECURSIVE r AS (SELECT value FROM text.`/etc/passwd` UNION ALL SELECT value FROM r) SELECT * FROM r",
    "SELECT * FROM LATERAL (SELECT java_method('java.lang.System', 'getenv', 'HOME'))",
    "SELECT aggregate(array('HOME'), '', (acc, x) -> java_method('java.lang.System', 'getenv', x))",
    "SELECT transform_values(map(1, 2), (k, v) -> (SELECT max(value) FROM text.`/etc/passwd`))",
    "SELECT from_json(a, schema_of_json(reflect('java.lang.System', 'getenv', 'HOME'))) FROM t",
    "SELECT from_json(a, 'a INT', map('b', (SELECT max(value) FROM text.`/etc/passwd`))) FROM t",
    "SELECT * FROM t TIMESTAMP AS OF (SELECT max(value) FROM text.`/etc/passwd`)",
    "SELECT * FROM t VERSION AS OF 1",
    "SELECT * FROM STREAM t",
    "SELECT * FROM t PIVOT (max(a) FOR b IN (reflect('java.lang.System', 'getenv', 'HOME')))",
    "SELECT a FROM t GROUP BY GROUPING SETS ((reflect('java.lang.System', 'getenv', 'HOME')))",
    "SELECT * FROM stack(1, reflect('java.lang.System', 'getenv', 'HOME'))",
    "SELECT * FROM range(start => 0, end => (SELECT length(max(value)) FROM text.`/etc/passwd`))",
    "SELECT * FROM f(TABLE(SELECT * FROM text.`/etc/passwd`) PARTITION BY value)",
    "FROM t |> LIMIT length(reflect('java.lang.System', 'getenv', 'HOME'))",
    "FROM t |> EXCEPT ALL TABLE orc.`/etc/passwd`",
    "FROM t REDUCE a USING 'sh'",
    "EXPLAIN EXPLAIN SELECT * FROM text.`/etc/passwd`",
    "EXPLAIN CODEGEN INSERT OVERWRITE DIRECTORY '/tmp/x' USING csv SELECT 1",
    "DESCRIBE text.`/etc/passwd`",
    "DESCRIBE QUERY SELECT reflect('java.lang.System', 'getenv', 'HOME')",
    "DESCRIBE FUNCTION EXTENDED reflect",
    "SELECT IDENTIFIER(:x) FROM t",
    "BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN SELECT 1; END; SELECT * FROM text.`/etc/passwd`; END",
    "CACHE LAZY TABLE x AS SELECT * FROM text.`/etc/passwd`",
    "SHOW CREATE TABLE t",
    "REFRESH '/etc'",
    "MERGE INTO t USING u ON false WHEN NOT MATCHED THEN INSERT *",
)
#: Functions that call Java, read what an argument or option names, parse XML, or tell about the host or the session.
LEFT_OUT = {
    *("reflect", "java_method", "try_reflect", "input_file_name", "input_file_block_start", "input_file_block_length"),
    *("from_xml", "schema_of_xml", "to_xml", "xpath", "xpath_boolean", "xpath_double", "xpath_float", "xpath_int"),
    *("xpath_long", "xpath_number", "xpath_short", "xpath_string", "from_avro", "to_avro", "schema_of_avro"),
    *("from_protobuf", "to_protobuf", "python_worker_logs", "collations", "sql_keywords", "measure"),
    *("user", "current_user", "session_user", "current_catalog", "current_database", "current_schema", "current_path"),
}
SECRET = "marzipan"
#: Questions that read a file outside the lake: WORD is a DTD that defines &word;, TEXT a text, XSD a schema.
PRYING = (
    "SELECT * FROM text.`TEXT`",
    "SELECT * FROM csv.`TEXT`",
    "WITH x AS (SELECT * FROM text.`TEXT`) SELECT * FROM x",
    "FROM bronze_journal |> UNION ALL TABLE text.`TEXT`",
    "FROM bronze_journal |> EXTEND (SELECT max(value) FROM text.`TEXT`) AS word",
    "SELECT xpath_string('<!DOCTYPE a SYSTEM \"file://WORD\"><a>&word;</a>', 'a')",
    "SELECT xpath('<!DOCTYPE a SYSTEM \"file://WORD\"><a>&word;</a>', 'a/text()')",
    "SELECT xpath_string('<!DOCTYPE a [<!ENTITY x SYSTEM \"file://TEXT\">]><a>&x;</a>', 'a')",
    "FROM bronze_journal |> SELECT xpath_string('<!DOCTYPE a SYSTEM \"file://WORD\"><a>&word;</a>', 'a')",
    "SELECT from_xml('<b>x</b>', 'b STRING', map('rowValidationXSDPath', 'TEXT'))",
    "SELECT from_xml('<b>x</b>', 'b STRING', map('rowValidationXSDPath', 'XSD', 'mode', 'FAILFAST'))",
    "SELECT from_xml('<!DOCTYPE a SYSTEM \"file://WORD\"><a><b>&word;</b></a>', 'b STRING')",
    "SELECT schema_of_xml('<b>x</b>', map('rowValidationXSDPath', 'XSD'))",
    "SELECT from_avro(x'00', '\"int\"', map('avroSchemaUrl', 'TEXT'))",
    "SELECT from_protobuf(x'00', 'M', 'TEXT')",
    "SELECT reflect('scala.io.Source', 'fromFile', 'TEXT', 'utf-8')",
    "SELECT try_reflect('scala.io.Source', 'fromFile', 'TEXT', 'utf-8')",
    "SELECT * FROM read_files('TEXT')",
    "SELECT * FROM bronze_journal WITH ('path' = 'TEXT')",
    "SELECT TRANSFORM(seq) USING 'cat TEXT' FROM bronze_journal",
    "EXECUTE IMMEDIATE 'SELECT * FROM text.`TEXT`'",
    "BEGIN DECLARE x STRING; SET x = (SELECT max(value) FROM text.`TEXT`); SELECT x; END",
    "DECLARE VARIABLE x STRING DEFAULT (SELECT max(value) FROM text.`TEXT`)",
    "CREATE TEMPORARY VIEW bronze_seals USING text OPTIONS (path 'TEXT')",
    "CREATE TEMPORARY FUNCTION count AS 'x' USING FILE 'TEXT'",
    "ADD FILE 'TEXT'",
    "EXPLAIN SELECT * FROM csv.`TEXT`",
    "DESCRIBE QUERY SELECT * FROM csv.`TEXT`",
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


def test_every_function_of_spark_is_allowed_or_left_out_on_purpose(spark: SparkSession) -> None:
    """A function of a later Spark is in neither list: decide if it computes its result from its arguments alone."""
    named = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    words = {name for name in named if name.replace("_", "").isalnum()}  # the others are operators
    assert (words - FUNCTIONS - TABLE_FUNCTIONS, FUNCTIONS - words) == (LEFT_OUT, frozenset())


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


@pytest.fixture
def outside(tmp_path: Path) -> dict[str, str]:
    """Files outside the lake that hold the secret word, by their name in a question."""
    simple = f'<xs:restriction base="xs:string"><xs:enumeration value="{SECRET}"/></xs:restriction>'
    element = f'<xs:element name="b"><xs:simpleType>{simple}</xs:simpleType></xs:element>'
    contents = {
        "TEXT": f"{SECRET}\n",
        "WORD": f'<!ENTITY word "{SECRET}">\n',
        "XSD": f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{element}</xs:schema>\n',
    }
    for name, content in contents.items():
        (tmp_path / name.lower()).write_text(content)
    return {name: str(tmp_path / name.lower()) for name in contents}


def naming(sql: str, files: dict[str, str]) -> str:
    for name, path in files.items():
        sql = sql.replace(name, path)
    return sql


def test_no_question_shows_a_word_of_a_file_outside_the_lake(
    spark: SparkSession, lake: Lake, outside: dict[str, str]
) -> None:
    answered = dict[str, str]()
    for sql in PRYING:
        try:
            answered[sql] = str(ask(spark, lake, naming(sql, outside)))
        except PosthouseError as failure:
            if failure.code != "query_refused" or SECRET in str(failure.problem()):
                answered[sql] = str(failure.problem())
    assert answered == {}


VARIABLES = ("${env:PATH}", "${system:user.home}", "${spark.sql.warehouse.dir}")


def test_no_question_and_no_condition_shows_a_variable_of_the_process(spark: SparkSession, lake: Lake) -> None:
    for variable in VARIABLES:
        assert ask(spark, lake, f"SELECT '{variable}' AS text").rows == [[variable]]
        rows = spark.createDataFrame([(variable,)], "text string")
        assert rows.where(f"text = '{variable}'").count() == 1
    session = spark.newSession()
    session.conf.set("spark.sql.variable.substitute", "true")
    for variable in VARIABLES:
        assert session.sql(f"SELECT '{variable}' AS text").collect()[0].text != variable, "control: Spark shows it"
        assert ask(session, lake, f"SELECT '{variable}' AS text").rows == [[variable]]


CONDITIONS = (
    "true",
    "destination = 'builds' AND at > now() - INTERVAL 7 DAYS",
    "lower(sender) LIKE 'a%' OR size(filter(array(1, 2), x -> x > 1)) = 1",
    "CASE WHEN kind IS NULL THEN false ELSE kind IN (1, 2) END",
)
REFUSED_CONDITIONS = (
    "reflect('java.lang.System', 'getProperty', 'user.home') = 'x'",
    "lower(java_method('java.lang.System', 'getProperty', 'user.home')) = 'x'",
    "IDENTIFIER('ref' || 'lect')('java.lang.System', 'exit', 0) = 'x'",
    "EXISTS (SELECT * FROM text.`/etc/passwd`)",
    "sender IN (SELECT value FROM text.`/etc/passwd`)",
    "sender = (SELECT max(sender) FROM silver_messages)",
    "input_file_name() = 'x'",
)


def test_condition_of_a_replay_only_computes(spark: SparkSession) -> None:
    for sql in CONDITIONS:
        check_condition(spark, sql)
    codes: dict[str, str] = {}
    for sql in (*REFUSED_CONDITIONS, "no such column", "true; DROP TABLE t"):
        with pytest.raises(PosthouseError) as refused:
            check_condition(spark, sql)
        codes[sql] = refused.value.code
    assert codes == dict.fromkeys(REFUSED_CONDITIONS, "query_refused") | {
        "no such column": "query_failed",
        "true; DROP TABLE t": "query_failed",
    }


def test_misspelled_table_is_refused_with_the_one_that_was_meant(spark: SparkSession) -> None:
    tables = frozenset({"silver_messages", "silver_deliveries"})
    for sql, meant in (
        ("SELECT * FROM silver_mesages", r"did you mean silver_messages\?$"),
        ("WITH mine AS (SELECT 1) SELECT * FROM mines", r"did you mean mine\?$"),
        ("SELECT * FROM nothing_like_it", "is not a table of the lake$"),
    ):
        with pytest.raises(PosthouseError, match=meant):
            check_question(spark, sql, tables)


def test_control_spark_itself_shows_the_word(spark: SparkSession, outside: dict[str, str]) -> None:
    for sql in (
        each for each in PRYING if "FROM text" in each[:20] or each.startswith("SELECT xpath_string('<!DOCTYPE a S")
    ):
        assert SECRET in str(spark.sql(naming(sql, outside)).collect()), sql


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
