"""The declaration of a table, and column functions that many tables share.

The same function serves the incremental run and the full rebuild. The declaration selects one of four refresh modes,
and each produces the same rows as a rebuild:
- append facts (silver_*_facts): `function` maps rows one by one, f(A + B) = f(A) + f(B), so a run applies it to the
  new input rows and appends the result.
- fold keys (silver): `function` folds all input rows of a key into its current row. A run folds the keys that have new
  input rows, and replaces their rows.
- follow replies (silver_conversation_messages): like fold keys, but a message also changes with those it is linked to.
- replace days (gold): a row belongs to the same day as its input rows. A run replaces the days whose input changed.
No function may read a clock or depend on row order. Times are integer nanoseconds, each with a TIMESTAMP next to it;
days and hours are UTC text. Key hashes only find rows: two keys with the same hash are folded in the same run, but keep
separate rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from posthouse.model.limits import DAY_S, MICROSECOND_NS, SECOND_NS
from posthouse.pipeline.tables.bronze import COPIES, EPOCHS_TABLE

TableFunction = Callable[[Mapping[str, DataFrame]], DataFrame]
#: Inputs that a run copies from the stores.
BRONZE = (*COPIES, EPOCHS_TABLE)


KEY_HASH = "key_hash"
GROUP_HASH = "group_hash"


class RefreshMode(Enum):
    """How a run brings a table up to date."""

    APPEND_FACTS = "append_facts"
    FOLD_KEYS = "fold_keys"
    FOLLOW_REPLIES = "follow_replies"
    REPLACE_DAYS = "replace_days"


@dataclass(frozen=True)
class Table:
    """One table of the lake."""

    #: <layer>_<noun>
    name: str
    #: Bronze tables, or tables declared earlier; `function` gets their rows.
    inputs: tuple[str, ...]
    #: The columns that identify a row; of facts, those that identify the row they are folded into.
    keys: tuple[str, ...]
    #: The columns that `function` returns.
    schema: StructType
    function: TableFunction
    refresh: RefreshMode
    #: The keys of the table that folds the rows of this one, if they differ from `keys`.
    group: tuple[str, ...] = ()
    #: Gives the same rows as `function` for inputs of one partition each, without starting Spark jobs.
    small_function: TableFunction | None = None

    @property
    def layer(self) -> str:
        """silver or gold."""
        return self.name.partition("_")[0]

    @property
    def is_keyed(self) -> bool:
        """True if a run finds rows of the table by the hash of a key."""
        return self.refresh is not RefreshMode.REPLACE_DAYS

    @property
    def is_by_day(self) -> bool:
        """True if files are split by the day on which a key opened; the facts of a key are from several days."""
        return self.refresh is not RefreshMode.APPEND_FACTS

    @property
    def stored(self) -> StructType:
        """The columns that the lake stores: those of `schema`, a TIMESTAMP for each time, and the key hashes."""
        fields: list[StructField] = []
        for field in self.schema.fields:
            fields.append(field)
            if is_time(field.name):
                fields.append(StructField(field.name.removesuffix("_ns"), TimestampType()))
        hashes = ([KEY_HASH] if self.is_keyed else []) + ([GROUP_HASH] if self.group else [])
        return StructType([*fields, *(StructField(name, LongType()) for name in hashes)])

    def compute(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """Return the rows of the table with all stored columns."""
        return self._with_stored_columns(self.function(inputs))

    def compute_small(self, inputs: Mapping[str, DataFrame]) -> DataFrame:
        """Return the same rows as `compute`, for inputs of one partition each."""
        return self._with_stored_columns((self.small_function or self.function)(inputs))

    def _with_stored_columns(self, rows: DataFrame) -> DataFrame:
        times = [field.name for field in self.schema.fields if is_time(field.name)]
        added = {name.removesuffix("_ns"): f.timestamp_micros(whole(f.col(name), MICROSECOND_NS)) for name in times}
        added |= {KEY_HASH: key_hash(self.keys)} if self.is_keyed else {}
        added |= {GROUP_HASH: key_hash(self.group)} if self.group else {}
        stored = rows.withColumns(added) if added else rows  # Spark Connect refuses to add no column
        return stored.select(*self.stored.fieldNames())


def is_time(column: str) -> bool:
    """Return True for a column of wall-clock nanoseconds; boot_ns is a monotonic clock without a date."""
    return column == "at_ns" or column.endswith("_at_ns")


def key_hash(keys: tuple[str, ...]) -> Column:
    """Return the hash of a key, by which a run finds its rows."""
    return f.xxhash64(*keys)


_HOUR_S = 3_600
_MAILBOX_HASH_CHARS = 12  # as in posthouse.bus.data_directory
_POSITION = ("epoch", "seq", "at_ns")
TEXT, LONG, BOOLEAN = StringType(), LongType(), BooleanType()
#: Dollars are summed as decimals, so that a sum does not depend on row order.
COST = DecimalType(28, 9)


def struct(**fields: DataType) -> StructType:
    """Return a schema of nullable columns in the order given."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def join(*parts: StructType) -> StructType:
    """Return the columns of several schemas, in order."""
    return StructType([field for part in parts for field in part.fields])


def complete(rows: DataFrame, schema: StructType, given: Mapping[str, Column]) -> DataFrame:
    """Select a schema from journal rows: the given columns, epoch, seq and at_ns of the row, and NULL for the rest."""
    columns = [
        given.get(field.name, f.col(field.name) if field.name in _POSITION else f.lit(None))
        .cast(field.dataType)
        .alias(field.name)
        for field in schema.fields
    ]
    return rows.select(*columns)


def day(at_ns: Column) -> Column:
    """Return the UTC day as 2026-01-31."""
    return f.date_add(f.lit("1970-01-01").cast("date"), whole(at_ns, SECOND_NS * DAY_S).cast("int")).cast("string")


def hour(at_ns: Column) -> Column:
    """Return the UTC hour as 2026-01-31T09."""
    of_day = f.pmod(whole(at_ns, SECOND_NS * _HOUR_S), f.lit(24)).cast("string")
    return f.concat(day(at_ns), f.lit("T"), f.lpad(of_day, 2, "0"))


def whole(value: Column, unit: int) -> Column:
    """Return the number of whole units in a value, by integer division."""
    return f.call_function("div", value, f.lit(unit))


def mailbox_hash(subject: Column) -> Column:
    """Return the name of the bus mailbox of a subject."""
    return f.left(f.sha2(subject, 256), f.lit(_MAILBOX_HASH_CHARS))


def agent_of(node: Column, agent: Column) -> Column:
    """Return the id of an agent: NODE/NAME, or only NODE if it has no name."""
    return f.when(agent.isNotNull() & (agent != ""), f.concat(node, f.lit("/"), agent)).otherwise(node)


def text(body: Column, field: str) -> Column:
    """Return a field of a JSON object as text; NULL if it is absent."""
    return f.get_json_object(body, f"$.{field}")


def number(body: Column, field: str) -> Column:
    """Return an integer field of a JSON object; NULL if it is absent."""
    return text(body, field).cast("long")
