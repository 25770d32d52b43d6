"""The inputs of a table, before and after a run, and the changes that the run made to it.

Delta stores each position as application versions of the table's own commits, so rows and position change together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: Application id for the number of restores: a restore changes which rows are lost.
RESTORES = "posthouse:restores"
#: Application id for the number of the newest erasure: an erasure empties rows that a table was derived from.
ERASURES = "posthouse:erasures"
#: Application id -> version.
Versions = dict[str, int]
#: Application id -> version; None: not committed yet.
CommittedVersions = Mapping[str, int | None]


@dataclass(frozen=True)
class Position:
    """The versions of a table's inputs: those that it has committed, and those that it should reach."""

    before: CommittedVersions
    target: Versions

    @property
    def is_reached(self) -> bool:
        """True if there is nothing new."""
        return dict(self.before) == self.target

    @property
    def has_restores(self) -> bool:
        """True if no restore has changed which rows are lost since the table's last commit."""
        return self.before[RESTORES] == self.target[RESTORES]

    @property
    def has_erasures(self) -> bool:
        """True if no erasure has emptied input rows since the table's last commit."""
        return self.before.get(ERASURES) == self.target.get(ERASURES)


@dataclass(frozen=True)
class Selection:
    """The keys of a table that a run folds again, by their hashes."""

    keys: pa.Array
    #: The groups of these rows, before and now; for a table that declares a group.
    groups: pa.Array | None = None


@dataclass(frozen=True)
class Change:
    """The changes that a run made to a table, for the tables derived from it."""

    #: The generation of the table before.
    after: int
    selection: Selection
    #: The UTC days that hold a changed row, before or after the run.
    days: frozenset[str]
