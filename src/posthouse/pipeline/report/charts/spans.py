"""Time in charts: hours gathered into as many equal spans as a width has room for."""

from __future__ import annotations

from datetime import UTC, datetime

_STEPS = (1, 2, 3, 6, 12, 24, 24 * 7, 24 * 28)


class Spans:
    """Equal spans of hours that cover a history."""

    def __init__(self, first: int, last: int, most: int) -> None:
        self.step = next((step for step in _STEPS if last // step - first // step < most), _STEPS[-1])
        self.first = first // self.step
        self.count = last // self.step - self.first + 1

    def index(self, hour: int) -> int:
        """Return the number of the span an hour is in."""
        return hour // self.step - self.first

    def words(self, index: int) -> str:
        """Return when a span begins."""
        begin = self._begin(index)
        return f"{begin.day} {begin:%b}" if self.step >= 24 else f"{begin.day} {begin:%b} {begin:%H:%M}"

    def labels(self) -> list[tuple[int, str]]:
        """Return the spans that deserve a label: those with which a day begins, or each when there are few."""
        by_day = [index for index in range(self.count) if self.step >= 24 or self._begin(index).hour == 0]
        if len(by_day) >= 2:
            return [(index, f"{self._begin(index).day} {self._begin(index):%b}") for index in by_day]
        return [(index, f"{self._begin(index):%H:%M}") for index in range(self.count)]

    def _begin(self, index: int) -> datetime:
        return datetime.fromtimestamp((self.first + index) * self.step * 3600, UTC)
