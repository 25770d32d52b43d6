"""A question in SQL to the lake, and its answer as plain rows.

Every table is a view of its name. Only questions are answered: a statement that would change something is refused,
because nothing but a run writes the lake.
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_ROWS = 100_000  # of one answer; a larger one belongs into a file
_QUESTIONS = ("select", "with", "show", "describe", "desc", "explain", "values", "table", "from", "(")


@dataclass(frozen=True, slots=True)
class Answer:
    """Columns and rows, as JSON can hold them."""

    columns: list[str]
    rows: list[list[Any]]
    is_cut: bool


def ask(spark: SparkSession, lake: Lake, sql: str, limit: int = MAX_ROWS) -> Answer:
    """Return what the lake answers, at most `limit` rows."""
    from pyspark.errors import PySparkException

    if not sql.strip().lower().startswith(_QUESTIONS):
        raise error("query_failed", reason="only questions are answered: SELECT, WITH, SHOW, DESCRIBE, EXPLAIN")
    register_named(spark, lake, sql)
    try:
        frame = spark.sql(sql)
        rows = frame.limit(limit + 1).collect()
    except PySparkException as failure:
        raise error("query_failed", reason=_reason(failure)) from failure
    shown = [[plain(value) for value in row] for row in rows[:limit]]
    return Answer(list(frame.columns), shown, len(rows) > limit)


def refuse_empty(lake: Lake) -> None:
    """Raise lake_empty where nothing was ever committed."""
    if not lake.names():
        raise error("lake_empty", path=str(lake.path), table="at all")


def register_named(spark: SparkSession, lake: Lake, sql: str) -> None:
    """Make views of the tables that a question names; of all when it asks what there is."""
    words = set(re.findall(r"[a-z_]+", sql.lower()))
    named = words & set(declared_names())
    lake.register(spark, named or None)


def plain(value: Any) -> Any:
    """Return a value of Spark as JSON can hold it."""
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


def _reason(failure: Exception) -> str:
    return str(failure).strip().partition("\n")[0].partition(" SQLSTATE")[0]
