"""What a declaration of a table says; the same function serves the incremental run and the full rebuild.

Three ways to keep a table up to date follow from what it declares, and each is equal to a rebuild:
- facts (silver): `function` looks at one row at a time, f(A + B) = f(A) + f(B), so a run applies it to the new rows of
  its inputs and appends. `latest`, where there is one, folds all facts of a key into what holds now.
- parts (gold): `function` gets the latest views; a row belongs to the `part` (a UTC day) of the input rows it was made
  from. A run replaces the parts of which an input row changed.
- whole: neither; a run that changed an input replaces the table.
Here is nothing about files or commits: that is the lake's. No function may look at a clock or at the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

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
