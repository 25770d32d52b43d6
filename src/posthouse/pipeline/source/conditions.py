"""Filters of Spark as conditions of SQL, on the columns that every feed has: seq, type, mesh and at_ns.

What a condition cannot say exactly as Spark means it is left to Spark. seq also bounds the range that is planned at
all, so that a filter on it costs what it keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

COLUMNS = {"seq": int, "at_ns": int, "type": str, "mesh": str}
_MOST_VALUES = 500  # of an IN: SQLite takes more, but a plan should stay readable


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of SQL: its text with question marks, and their values."""

    column: str
    operator: str
    text: str
    values: tuple[Any, ...] = ()


def condition_of(given: Filter) -> Condition | None:
    """Return the condition that says exactly what a filter says, or None."""
    from pyspark.sql.datasource import EqualTo, In, IsNotNull, IsNull

    column = _column(given)
    if column is None:
        return None
    if isinstance(given, IsNull):
        return Condition(column, "null", f"{column} IS NULL")
    if isinstance(given, IsNotNull):
        return Condition(column, "set", f"{column} IS NOT NULL")
    if isinstance(given, In):
        return _any_of(column, tuple(given.value))
    operator = "=" if isinstance(given, EqualTo) else _comparison(given)
    value = getattr(given, "value", None)
    if operator is None or type(value) is not COLUMNS[column]:
        return None
    return Condition(column, operator, f"{column} {operator} ?", (value,))


def bounds(conditions: Iterable[Condition]) -> tuple[int, int | None]:
    """Return (after, to]: what conditions on seq leave of all seqs."""
    after, to = 0, None
    for each in conditions:
        if each.column != "seq" or not each.values:
            continue
        low, high = min(each.values), max(each.values)
        if each.operator in ("=", "in", ">", ">="):
            after = max(after, low if each.operator == ">" else low - 1)
        if each.operator in ("=", "in", "<", "<="):
            least = high - 1 if each.operator == "<" else high
            to = least if to is None else min(to, least)
    return after, to


def _column(given: Filter) -> str | None:
    attribute: Sequence[str] = getattr(given, "attribute", ())
    return attribute[0] if len(attribute) == 1 and attribute[0] in COLUMNS else None


def _any_of(column: str, values: tuple[Any, ...]) -> Condition | None:
    if not 0 < len(values) <= _MOST_VALUES or any(type(value) is not COLUMNS[column] for value in values):
        return None
    return Condition(column, "in", f"{column} IN ({', '.join('?' * len(values))})", values)


def _comparison(given: Filter) -> str | None:
    from pyspark.sql.datasource import GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

    operators = {GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
    return operators.get(type(given))
