"""bus.refused records, aggregated: a row per refusal would let any sender fill the disk.

The first refusal of a reason, sender and endpoint within a minute is recorded at once, so that it can be seen; the
rest of that minute becomes one more record when the minute is over or the bus closes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from posthouse.bus.draft import Draft
from posthouse.bus.page import Page
from posthouse.bus.results import Reason

if TYPE_CHECKING:
    from posthouse.bus.ledger import Ledger

_DEAD = {Reason.ACCESS_DENIED, Reason.BUDGET_EXCEEDED}  # these have a bus.dead record each
Key = tuple[str, str, str]


class Refusals:
    """Counts what was refused in the current minute."""

    def __init__(self, ledger: Ledger, minute: Callable[[], int]) -> None:
        self._ledger = ledger
        self._minute = minute
        self._current = -1
        self._counts: dict[Key, int] = {}

    def count(self, draft: Draft) -> None:
        """Note the refusals of one publish."""
        self.turn()
        for entry in draft.rejected:
            if entry.reason in _DEAD:
                continue
            key = (entry.reason.value, draft.from_, entry.subject)
            if key in self._counts:
                self._counts[key] += 1
            else:
                self._counts[key] = 0
                self._ledger.submit_lazily(_Refused(key, self._current, 1))

    def turn(self) -> None:
        """Record the minute that is over."""
        minute = self._minute()
        if minute != self._current:
            self.write()
            self._current = minute

    def write(self) -> None:
        """Record what is counted so far."""
        for key, count in self._counts.items():
            if count:
                self._ledger.submit_lazily(_Refused(key, self._current, count))
        self._counts = {}


class _Refused:
    """One aggregated record."""

    __slots__ = ("_count", "_key", "_minute")

    def __init__(self, key: Key, minute: int, count: int) -> None:
        self._key = key
        self._minute = minute
        self._count = count

    def apply(self, page: Page) -> None:
        reason, sender, endpoint = self._key
        body = {"reason": reason, "key": f"{sender} {endpoint}", "minute": self._minute, "count": self._count}
        page.tx.append("bus.refused", actor=sender, ref=reason, body=body)

    def committed(self) -> None:
        """Nothing is left to do."""

    def failed(self, _failure: Exception) -> bool:
        return True
