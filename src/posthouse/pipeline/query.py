"""Run SQL queries over the lake.

Every table is a view with its name. Each query runs in a separate session after the guard has accepted it
(posthouse.pipeline.query_guard), so it can neither change anything nor see settings of another query. Values are
returned as JSON values. posthouse.pipeline.serve runs queries of other processes in a warm session. Importing this
module must not load pyspark: a query to a warm session has to be fast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from posthouse.model.errors import error
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.lake import declared_names
from posthouse.pipeline.query_guard import check_question, refuse_connect, refuse_outside_calls
from posthouse.pipeline.session.spark import spark_reason, stopped_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MAX_ROWS = 100_000  # per answer; export a larger result to a file
#: Settings of every query's session; they override those of the session that it is derived from.
_LOCKS = {
    "spark.sql.runSQLOnFiles": "false",  # in case the guard misses a path
    "spark.sql.variable.substitute": "false",  # ${env:NAME} would show variables of this process, keys among them
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows as JSON values; `is_cut` if there are more rows."""

    columns: list[str]
    rows: list[list[Any]]
    is_cut: bool


def ask(spark: SparkSession, lake: Lake, sql: str, limit: int = MAX_ROWS) -> Answer:
    """Run a query and return at most `limit` rows."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    refuse_connect(spark)
    session = spark.newSession()
    for name, value in _LOCKS.items():
        session.conf.set(name, value)
    check_question(session, sql, frozenset(declared_names()))
    register_named(session, lake, sql)
    try:
        frame = session.sql(sql)
        refuse_outside_calls(frame._jdf.queryExecution().analyzed())
        rows = frame.limit(limit + 1).collect()
    except (PySparkException, Py4JError) as failure:
        raise stopped_spark(failure) or error("query_failed", reason=spark_reason(failure)) from failure
    shown = [[plain(value) for value in row] for row in rows[:limit]]
    return Answer(list(frame.columns), shown, len(rows) > limit)


def refuse_empty(lake: Lake) -> None:
    """Raise lake_empty if the lake has no commit."""
    if not lake.names():
        raise error("lake_empty", path=lake.location, table="at all")


def register_named(spark: SparkSession, lake: Lake, sql: str) -> None:
    """Register the tables that a query names as views; all tables if it names none, as SHOW TABLES does."""
    words = set(re.findall(r"[a-z_]+", sql.lower()))
    named = words & set(declared_names())
    lake.register(spark, named or None)


def plain(value: Any) -> Any:
    """Convert a Spark value to a JSON value."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
