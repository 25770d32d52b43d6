"""What a table declares, and the columns that many tables share.

The same function serves the incremental run and the full rebuild. Three ways to keep a table up to date follow from its
declaration, and each is equal to a rebuild:
- facts (silver): `function` looks at one row at a time, f(A + B) = f(A) + f(B), so a run applies it to the new input
  rows and appends. `latest`, if declared, folds all facts of a key into the current row.
- parts (gold): `function` gets the latest views; a row belongs to the `part` (a UTC day) of its input rows. A run
  replaces the parts of which an input row changed.
- whole: a run that changed an input replaces the table.
No function may look at a clock or at the order of rows. Times stay whole nanoseconds; days and hours are UTC text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

TableFunction = Callable[[Mapping[str, DataFrame]], DataFrame]
ViewFunction = Callable[[DataFrame], DataFrame]
#: inputs that no table makes: what the run takes from the stores
BRONZE = ("bronze_journal", "bronze_events", "bronze_epochs")
#: added by the lake to every view whose rows have epoch and seq; a fact never carries it, because it comes later
LOST = "lost_by_restore"


class Upkeep(Enum):
    """How a run brings a table up to date."""

    FACTS = "facts"
    PARTS = "parts"
    WHOLE = "whole"


@dataclass(frozen=True)
class Table:
    """One table of the lake."""

    #: <layer>_<noun>
    name: str
    #: names of bronze tables or of tables declared before; `function` gets their views
    inputs: tuple[str, ...]
    #: columns that name a row of the view; facts are bucketed by their hash
    keys: tuple[str, ...]
    #: of what `function` returns and the lake stores
    schema: StructType
    function: TableFunction
    upkeep: Upkeep
    #: facts with LOST -> one row per key, with a LOST of its own and `day`, which never changes for a key
    latest: ViewFunction | None = None
    #: the column whose values are replaced together
    part: str | None = None

    def __post_init__(self) -> None:
        if (self.upkeep is Upkeep.PARTS) != (self.part is not None):
            raise ValueError(f"{self.name}: a part is declared exactly for tables kept by parts")
        if self.latest is not None and self.upkeep is not Upkeep.FACTS:
            raise ValueError(f"{self.name}: only facts have a latest view")

    @property
    def layer(self) -> str:
        """silver or gold."""
        return self.name.partition("_")[0]

    def view(self, facts: DataFrame) -> DataFrame:
        """Return what readers see of the stored rows, which must carry LOST if they are facts."""
        return facts if self.latest is None else self.latest(facts)


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
