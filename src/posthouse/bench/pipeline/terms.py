"""How much the measurements of the pipeline do."""

from __future__ import annotations

from dataclasses import dataclass

ROW_BYTES = 256  # of a record: all its columns as text
MASTER = "local[2]"


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done; `QUICK` is for tests and a first look."""

    #: records of the relay's file
    rows: int = 1_000_000
    #: records of the first, small run; the large one has ten times as many
    growth_rows: int = 100_000
    #: signed events for the audit's signature stage
    events: int = 60_000
    rounds: int = 3


QUICK = Scale(rows=30_000, growth_rows=3_000, events=2_000, rounds=1)
