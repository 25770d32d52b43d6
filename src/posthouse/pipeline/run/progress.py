"""What a run tells while it works: one step after another, each a value that people and programs can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a run has done."""

    #: copied, derived, unchanged, gap, published, vacuumed
    step: str
    table: str
    rows: int
    #: what else is worth telling
    fields: dict[str, Any]

    def as_value(self) -> dict[str, Any]:
        """Return the step as one JSON object."""
        return {"step": self.step, "table": self.table, "rows": self.rows} | self.fields


Tell = Callable[[Step], None]


def silent(_step: Step) -> None:
    """Tell nobody."""
