"""Pages of events in commit order, read in windows of seq.

A window starts small and grows while it yields little, so a dense answer costs a few index entries more than the page
and a sparse one a few seeks per doubling; where matches begin to crowd, it shrinks again. A page that has taken its
time ends early and says how far it is complete: nothing a filter asks for can hold a read open for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import merge

import apsw

from posthouse.model.clock import Clock
from posthouse.relay.store.interface import Page, StoredEvent
from posthouse.relay.store.sqlite.plan import Plan

_FIRST_WINDOW = 2_048  # seqs: a page of 500 from a term that a quarter of all events have
_LAST_WINDOW = 65_536  # bounds what one statement sorts and compares
_GROWTH = 4
_CROWD = 4_000  # places collected for one window: a fraction of a millisecond
_PAGE_BYTES = 8 * 1024 * 1024  # of events: whoever asks for 500 of the largest gets them in parts
_TIME_NS = 500_000_000  # per page: far above any sane filter, far below the pool's bound


@dataclass(frozen=True, slots=True)
class Range:
    """The seqs a page may come from, (low, high], and from which end it is read."""

    low: int
    high: int
    is_descending: bool

    def window(self, width: int) -> Range:
        """Return the first part of the range."""
        if self.is_descending:
            return Range(max(self.low, self.high - width), self.high, True)
        return Range(self.low, min(self.high, self.low + width), False)

    def after(self, seq: int) -> Range:
        """Return what is left once everything up to and including `seq` was read."""
        return Range(self.low, seq - 1, True) if self.is_descending else Range(seq, self.high, False)

    def without(self, window: Range) -> Range:
        """Return what is left after a window."""
        return Range(self.low, window.low, True) if self.is_descending else Range(window.high, self.high, False)

    @property
    def width(self) -> int:
        return self.high - self.low

    @property
    def is_empty(self) -> bool:
        return self.low >= self.high


def read_page(db: apsw.Connection, plans: list[Plan], span: Range, limit: int, clock: Clock) -> Page:
    """Return up to `limit` events that one of the plans yields."""
    if limit == 0:
        return Page([], span.high if span.is_descending else span.low, True)  # who asks for nothing has all of it
    found: list[StoredEvent] = []
    left = span
    width = span.high - span.low if all(plan.driver.is_small for plan in plans) else _FIRST_WINDOW
    deadline_ns = clock.boot_ns() + _TIME_NS
    while not left.is_empty and len(found) <= limit:
        window = _uncrowded(db, plans, left.window(max(1, width)))
        rows, read_through = _read_window(db, plans, window, limit + 1 - len(found))
        found += rows
        left = left.without(window) if read_through is None else left.after(read_through)
        width = min(max(window.width, 1) * _GROWTH, max(_LAST_WINDOW, window.width))
        if clock.boot_ns() > deadline_ns:  # after a window, not before: each page gets further
            break
    return _page(found, left, limit)


def _uncrowded(db: apsw.Connection, plans: list[Plan], window: Range) -> Range:
    """Return the first part of a window in which no plan collects much more than a page."""
    while window.width > _FIRST_WINDOW and any(p.is_crowded(db, window.low, window.high, _CROWD) for p in plans):
        window = window.window(max(1, window.width // _GROWTH))
    return window


def _page(found: list[StoredEvent], left: Range, limit: int) -> Page:
    """Cut the one event too many that proves there is more, and what would make the page too large."""
    fitting = _fitting(found, limit)
    if len(found) > fitting:
        del found[fitting:]
        return Page(found, found[-1].seq, False)
    if left.is_empty:
        return Page(found, left.high if not left.is_descending else left.low, True)
    return Page(found, left.high + 1 if left.is_descending else left.low, False)


def _fitting(found: list[StoredEvent], limit: int) -> int:
    """Return how many events a page may have: at least one, at most `limit`, within the bytes of a page."""
    size = 0
    for number, event in enumerate(found[:limit]):
        size += len(event.raw)
        if number and size > _PAGE_BYTES:
            return number
    return limit


def _read_window(
    db: apsw.Connection, plans: list[Plan], window: Range, limit: int
) -> tuple[list[StoredEvent], int | None]:
    """Return the first matches in a window, and the seq they are complete through, or None for all of it."""
    lists: list[list[StoredEvent]] = []
    read_through: int | None = None
    for plan in plans:
        rows = plan.rows(db, window.low, window.high, limit, is_descending=window.is_descending)
        if len(rows) == limit:  # there may be more of this plan: nothing beyond its last row is complete
            read_through = rows[-1].seq if read_through is None else _earlier(window, read_through, rows[-1].seq)
        lists.append(plan.keep(rows))
    merged = lists[0] if len(lists) == 1 else _merge(lists, window.is_descending)
    if read_through is not None:
        merged = [row for row in merged if _is_within(window, row.seq, read_through)]
    return merged, read_through


def _merge(lists: list[list[StoredEvent]], is_descending: bool) -> list[StoredEvent]:
    ordered = merge(*lists, key=lambda row: row.seq, reverse=is_descending)
    return list({row.seq: row for row in ordered}.values())


def _earlier(window: Range, one: int, other: int) -> int:
    return max(one, other) if window.is_descending else min(one, other)


def _is_within(window: Range, seq: int, bound: int) -> bool:
    return seq >= bound if window.is_descending else seq <= bound


def count_matches(db: apsw.Connection, plans: list[Plan], span: Range, clock: Clock) -> tuple[int, Range]:
    """Return how many events one of the plans yields, and the part of the range there was no time for."""
    total, left = 0, span
    deadline_ns = clock.boot_ns() + _TIME_NS
    while not left.is_empty:
        window = left.window(_LAST_WINDOW)
        total += len(set[int]().union(*(plan.seqs(db, window.low, window.high) for plan in plans)))
        left = left.without(window)
        if clock.boot_ns() > deadline_ns:
            break
    return total, left
