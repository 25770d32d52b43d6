"""The feeds: append-only views of a store's journal, whose typed columns are a contract.

    journal                     every record, of any store
    events                      accepted events with their content, of a relay
    deliveries, locks           records of these areas, of a relay
    bus, outbox, inbox          records of these areas, of the store of the same name
Every feed has seq, at_ns, type and mesh. Filters on these are pushed down as SQL conditions, but only if SQL has
exactly Spark's semantics. A filter on seq also bounds the planned range. The same statements, with placeholders `?`,
read a store's file and a database. Workers, driver and command line import this module, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


_RECORD = ("seq", "at_ns", "type", "mesh", "actor", "ref", "body")
_EVENT_INTEGERS = ("kind", "created_at_ns", "expiration_s")
_EVENT = ("seq", "at_ns", "type", "mesh", "id", "pubkey", "kind", "created_at_ns", "recipient", "expiration_s", "event")
_LOCK_TEXTS = ("resource", "owner", "session", "mode", "request_id", "run_id", "former_owner", "broken_by")
_LOCK = (
    *("seq", "at_ns", "type", "mesh", "resource", "owner", "session", "token", "mode", "tree", "lease_ms"),
    *("request_id", "wait_ms", "run_id", "boot_ns", "deadline_boot_ns"),
    *("former_owner", "former_token", "former_deadline_boot_ns", "broken_by"),
)
_INTEGERS = frozenset({"seq", "at_ns", *_EVENT_INTEGERS, *_LOCK[5:]} - set(_LOCK_TEXTS))


@dataclass(frozen=True, slots=True)
class Feed:
    """One feed: the view it reads, and its columns in order."""

    name: str
    view: str
    columns: tuple[str, ...]
    #: The kinds of store that have the feed.
    stores: tuple[str, ...]
    #: A GLOB on type that narrows the view; None: the whole view.
    glob: str | None = None

    def schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the columns for Arrow, all or some."""
        import pyarrow as pa

        chosen = columns or self.columns
        return pa.schema([(name, pa.int64() if name in _INTEGERS else pa.string()) for name in chosen])

    def struct(self) -> StructType:
        """Return the columns for Spark."""
        from pyspark.sql.types import LongType, StringType, StructField, StructType

        kinds = {True: LongType(), False: StringType()}
        return StructType([StructField(name, kinds[name in _INTEGERS]) for name in self.columns])


STORES = ("relay", "bus", "outbox", "inbox")
JOURNAL = Feed("journal", "feed_journal_v1", _RECORD, STORES)
EVENTS = Feed("events", "feed_events_v1", _EVENT, ("relay",))
FEEDS: dict[str, Feed] = {
    feed.name: feed
    for feed in (
        JOURNAL,
        EVENTS,
        Feed("deliveries", "feed_deliveries_v1", _RECORD, ("relay",)),
        Feed("locks", "feed_locks_v2", _LOCK, ("relay",)),
        Feed("bus", "feed_journal_v1", _RECORD, ("bus",), "bus.*"),
        Feed("outbox", "feed_journal_v1", _RECORD, ("outbox",), "outbox.*"),
        Feed("inbox", "feed_journal_v1", _RECORD, ("inbox",), "inbox.*"),
    )
}
#: The epochs of a store's journal, oldest first, as values of an Ancestor.
SELECT_EPOCHS = "SELECT epoch, parent_epoch, fork_seq, started_at_ns FROM epochs ORDER BY number"
RANGE_ROWS = 16_384  # about 5 MB and 30 ms: a short transaction for the store, but large enough to be fast
COLUMNS = {"seq": int, "at_ns": int, "type": str, "mesh": str}
_MAX_VALUES = 500  # per IN: SQLite allows more, but a query plan should stay readable


@dataclass(frozen=True, slots=True)
class Condition:
    """An SQL condition: its text with placeholders, and their values."""

    column: str
    operator: str
    text: str
    values: tuple[Any, ...] = ()


def read_ranges(
    run: Callable[[str, Sequence[Any]], pa.Table],
    feed: Feed,
    after: int,
    to: int,
    columns: Sequence[str] | None = None,
    conditions: Collection[Condition] = (),
) -> Iterator[pa.Table]:
    """Yield the rows (after, to] of a feed in seq order, RANGE_ROWS at a time; `run` executes a statement."""
    schema = feed.schema(columns)
    only_feed = () if feed.glob is None else (Condition("type", "glob", "type GLOB ?", (feed.glob,)),)
    narrowing = (*only_feed, *conditions)
    where = " AND ".join(("seq > ?", "seq <= ?", *(each.text for each in narrowing)))
    text = f"SELECT {', '.join(schema.names)} FROM {feed.view} WHERE {where} ORDER BY seq"
    values = [value for each in narrowing for value in each.values]
    for low in range(after, to, RANGE_ROWS):
        found = run(text, (low, min(low + RANGE_ROWS, to), *values))
        # SQLite gives no type to a column that holds only NULLs.
        yield found if found.schema == schema else found.cast(schema)


def condition_of(given: Filter) -> Condition | None:
    """Return the SQL condition that is equivalent to a filter, or None."""
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
    """Return the range (after, to] that conditions on seq allow."""
    after, to = 0, None
    for each in conditions:
        if each.column != "seq" or not each.values:
            continue
        low, high = min(each.values), max(each.values)
        if each.operator in ("=", "in", ">", ">="):
            after = max(after, low if each.operator == ">" else low - 1)
        if each.operator in ("=", "in", "<", "<="):
            limit = high - 1 if each.operator == "<" else high
            to = limit if to is None else min(to, limit)
    return after, to


def _column(given: Filter) -> str | None:
    attribute: Sequence[str] = getattr(given, "attribute", ())
    return attribute[0] if len(attribute) == 1 and attribute[0] in COLUMNS else None


def _any_of(column: str, values: tuple[Any, ...]) -> Condition | None:
    if not 0 < len(values) <= _MAX_VALUES or any(type(value) is not COLUMNS[column] for value in values):
        return None
    return Condition(column, "in", f"{column} IN ({', '.join('?' * len(values))})", values)


def _comparison(given: Filter) -> str | None:
    from pyspark.sql.datasource import GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

    operators = {GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<="}
    return operators.get(type(given))
