"""Columns that many tables are made of: places in history, days and hours, fields of JSON bodies.

Times stay whole nanoseconds; days and hours are text in UTC, whatever time zone a session has.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

_SECOND_NS = 1_000_000_000
_HOUR_S = 3_600
_DAY_S = 24 * _HOUR_S

_PLACE = ("epoch", "seq", "at_ns")
TEXT, LONG = StringType(), LongType()


def struct(**fields: DataType) -> StructType:
    """Return a schema of nullable columns in the order given."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def complete(rows: DataFrame, schema: StructType, given: Mapping[str, Column]) -> DataFrame:
    """Return rows of the journal in a schema: what is given, their place in history, and NULL for the rest."""
    columns = [
        given.get(field.name, f.col(field.name) if field.name in _PLACE else f.lit(None))
        .cast(field.dataType)
        .alias(field.name)
        for field in schema.fields
    ]
    return rows.select(*columns)


def day(at_ns: Column) -> Column:
    """Return the UTC day as 2026-01-31."""
    return f.date_add(f.lit("1970-01-01").cast("date"), whole(at_ns, _SECOND_NS * _DAY_S).cast("int")).cast("string")


def hour(at_ns: Column) -> Column:
    """Return the UTC hour as 2026-01-31T09."""
    of_day = f.pmod(whole(at_ns, _SECOND_NS * _HOUR_S), f.lit(24)).cast("string")
    return f.concat(day(at_ns), f.lit("T"), f.lpad(of_day, 2, "0"))


def whole(value: Column, unit: int) -> Column:
    """Return how many whole units a number holds, without going through floating point."""
    return f.call_function("div", value, f.lit(unit))


def text(body: Column, field: str) -> Column:
    """Return a field of a JSON object as text; NULL when it is not there."""
    return f.get_json_object(body, f"$.{field}")


def number(body: Column, field: str) -> Column:
    """Return an integer field of a JSON object; NULL when it is not there."""
    return text(body, field).cast("long")
