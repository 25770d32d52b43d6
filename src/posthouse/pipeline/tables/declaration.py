"""The declaration of a table, and column functions that many tables share.

The same function serves the incremental run and the full rebuild. The declaration selects one of three refresh
modes, and each produces the same rows as a rebuild:
- append facts (silver): `function` maps rows one by one, f(A + B) = f(A) + f(B), so a run applies it to the new input
  rows and appends the result. `latest`, if declared, reduces all facts of a key to its current row.
- replace partitions (gold): `function` gets the latest views; a row belongs to the same `partition` (a UTC day) as
  its input rows. A run replaces the partitions whose input rows changed.
- replace all: a run that changed an input replaces the table.
No function may read a clock or depend on row order. Times are integer nanoseconds; days and hours are UTC text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, DecimalType, LongType, StringType, StructField, StructType

from posthouse.model.limits import DAY_S, SECOND_NS
from posthouse.pipeline.tables.bronze import COPIES, EPOCHS_TABLE

TableFunction = Callable[[Mapping[str, DataFrame]], DataFrame]
ViewFunction = Callable[[DataFrame], DataFrame]
#: Inputs that a run copies from the stores.
BRONZE = (*COPIES, EPOCHS_TABLE)


class RefreshMode(Enum):
    """How a run brings a table up to date."""

    APPEND_FACTS = "append_facts"
    REPLACE_PARTITIONS = "replace_partitions"
    REPLACE_ALL = "replace_all"


@dataclass(frozen=True)
class Table:
    """One table of the lake."""

    #: <layer>_<noun>
    name: str
    #: Bronze tables, or tables declared earlier; `function` gets their views.
    inputs: tuple[str, ...]
    #: The columns that identify a row of the view; facts are bucketed by their hash.
    keys: tuple[str, ...]
    #: The columns that `function` returns and the lake stores.
    schema: StructType
    function: TableFunction
    refresh: RefreshMode
    #: Maps facts with LOST to one row per key, with a LOST of its own and a `day` that never changes for a key.
    latest: ViewFunction | None = None
    #: The partition column of a table that is refreshed by partition.
    partition: str | None = None

    def __post_init__(self) -> None:
        if (self.refresh is RefreshMode.REPLACE_PARTITIONS) != (self.partition is not None):
            raise ValueError(f"{self.name}: REPLACE_PARTITIONS and a partition column require each other")
        if self.latest is not None and self.refresh is not RefreshMode.APPEND_FACTS:
            raise ValueError(f"{self.name}: only a table of facts has a latest view")

    @property
    def layer(self) -> str:
        """silver or gold."""
        return self.name.partition("_")[0]

    def view(self, facts: DataFrame) -> DataFrame:
        """Return the view of stored rows; facts must carry LOST."""
        return facts if self.latest is None else self.latest(facts)


_HOUR_S = 3_600
_MAILBOX_HASH_CHARS = 12  # as in posthouse.bus.data_directory
_POSITION = ("epoch", "seq", "at_ns")
TEXT, LONG = StringType(), LongType()
#: Dollars are summed as decimals, so that a sum does not depend on row order.
COST = DecimalType(28, 9)


def struct(**fields: DataType) -> StructType:
    """Return a schema of nullable columns in the order given."""
    return StructType([StructField(name, kind) for name, kind in fields.items()])


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


def text(body: Column, field: str) -> Column:
    """Return a field of a JSON object as text; NULL if it is absent."""
    return f.get_json_object(body, f"$.{field}")


def number(body: Column, field: str) -> Column:
    """Return an integer field of a JSON object; NULL if it is absent."""
    return text(body, field).cast("long")
