"""Refusals, counted per code, key and minute, so that they can be written to the journal.

A record each would be a way to fill the disk: what one minute can write is bounded by the number of entries, and the
keys beyond it are counted together under `*`.
"""

from __future__ import annotations

from posthouse.model.clock import Clock
from posthouse.model.limits import SECOND_NS
from posthouse.relay.store.interface import RelayStore, Unit

MAX_ENTRIES = 512  # records a minute can write at most
OTHERS = "*"
UNKNOWN = "unknown"
_MINUTE_NS = 60 * SECOND_NS
Entry = tuple[str, str, int]


class Refusals:
    """Counts refusals until they are written."""

    def __init__(self, clock: Clock, max_entries: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._counts: dict[Entry, int] = {}

    def note(self, code: str, key: str | None) -> None:
        """Count one refusal; `key` is the node it concerns, if one is known."""
        minute = self._clock.wall_ns() // _MINUTE_NS
        entry = (code, key or UNKNOWN, minute)
        if entry not in self._counts and len(self._counts) >= self._max_entries:
            entry = (code, OTHERS, minute)
        self._counts[entry] = self._counts.get(entry, 0) + 1

    def __len__(self) -> int:
        return len(self._counts)

    async def write(self, store: RelayStore, *, everything: bool = False) -> int:
        """Write the minutes that are over, or all; return how many records."""
        minute = self._clock.wall_ns() // _MINUTE_NS
        due = {entry: count for entry, count in self._counts.items() if everything or entry[2] != minute}
        if not due:
            return 0
        await store.submit(lambda unit: _append(unit, due))
        for entry, count in due.items():  # only now: a store without room keeps the counts for later
            self._counts[entry] -= count
            if not self._counts[entry]:
                del self._counts[entry]
        return len(due)


def _append(unit: Unit, due: dict[Entry, int]) -> None:
    for (code, key, minute), count in due.items():
        unit.append("refused", actor=key, ref=code, body={"code": code, "key": key, "minute": minute, "count": count})
