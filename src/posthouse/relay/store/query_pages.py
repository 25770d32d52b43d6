"""Pages of query results in commit order, for every store: windows of seq, and which conditions can drive a filter.

Pages are read in windows of seq that grow while they yield little; a page that has used up its time ends early and says
how far it is complete. A plan is one filter, prepared by a store for its database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Protocol, TypeVar

from posthouse.model.clock import Clock
from posthouse.model.filters import Filter
from posthouse.model.limits import FILTER_MAX_VALUES
from posthouse.relay.store.event_rows import (
    Page,
    Query,
    StoredEvent,
    author_kind_term,
    author_term,
    is_indexed,
    kind_term,
    mesh_term,
    tag_term,
)

DbT = TypeVar("DbT", contravariant=True)
#: (low, high] of seqs
Span = tuple[int, int]


def driving_terms(wanted: Filter) -> Iterable[tuple[str | None, list[bytes]]]:
    """Yield each condition of a filter that an index can drive: the terms, and the name of its tag if it is one."""
    for name, values in wanted.tags.items():
        if is_indexed(name):
            yield name, [tag_term(name, value) for value in values]
    if wanted.authors is not None and wanted.kinds is not None:
        yield from _pairs(wanted.authors, wanted.kinds)
    if wanted.authors is not None:
        yield None, [author_term(author) for author in wanted.authors]
    if wanted.kinds is not None:
        yield None, [kind_term(kind) for kind in wanted.kinds]
    if wanted.mesh is not None:
        yield None, [mesh_term(wanted.mesh)]


def _pairs(authors: frozenset[str], kinds: frozenset[int]) -> Iterable[tuple[None, list[bytes]]]:
    if len(authors) * len(kinds) <= FILTER_MAX_VALUES:
        yield None, [author_kind_term(author, kind) for author in authors for kind in kinds]


class Plan(Protocol[DbT]):
    """A filter prepared for ranges of seq."""

    @property
    def is_small(self) -> bool:
        """Whether it yields few rows, so that ranges need no limit."""
        ...

    def rows(self, db: DbT, window: Range, limit: int, max_bytes: int) -> tuple[list[StoredEvent], bool]:
        """Return the first rows of a window that may match, and True if it may have more; `keep` drops the others."""
        ...

    def is_crowded(self, db: DbT, low: int, high: int, most: int) -> bool:
        """Return True if more than `most` entries would be collected in (low, high], however few rows are wanted."""
        ...

    def keep(self, rows: list[StoredEvent]) -> list[StoredEvent]:
        """Return the rows that match."""
        ...

    def seqs(self, db: DbT, low: int, high: int) -> set[int]:
        """Return the seqs of all matches in (low, high]."""
        ...

    def count(self, db: DbT, low: int, high: int) -> int:
        """Return the number of matches in (low, high]."""
        ...


_FIRST_WINDOW = 2_048  # seqs: a page of 500 from a term that a quarter of all events have
_LAST_WINDOW = 65_536  # bounds what one statement sorts and compares
_GROWTH = 4
_CROWD = 4_000  # entries collected for one window: a fraction of a millisecond
_TIME_NS = 500_000_000  # per page: far more than a reasonable filter needs, far below the time limit of the read pool
_COUNT_NS = 50_000_000  # per step of a count: long counts take turns, and each step is one read of the pool


@dataclass(frozen=True, slots=True)
class Range:
    """A range of seqs, (low, high], and the end from which it is read."""

    low: int
    high: int
    is_descending: bool

    def window(self, width: int) -> Range:
        """Return the first part of the range."""
        if self.is_descending:
            return Range(max(self.low, self.high - width), self.high, True)
        return Range(self.low, min(self.high, self.low + width), False)

    def after(self, seq: int) -> Range:
        """Return the rest once everything up to and including `seq` is read."""
        return Range(self.low, seq - 1, True) if self.is_descending else Range(seq, self.high, False)

    def without(self, window: Range) -> Range:
        """Return the rest after a window."""
        return Range(self.low, window.low, True) if self.is_descending else Range(window.high, self.high, False)

    @property
    def width(self) -> int:
        return self.high - self.low

    @property
    def is_empty(self) -> bool:
        return self.low >= self.high


def range_of(query: Query, head: int) -> Range:
    """Return the range that a query reads in a store with this head."""
    if query.is_descending:
        return Range(0, head if query.from_seq is None else min(head, query.from_seq - 1), True)
    return Range(query.from_seq or 0, head, False)


def read_page(db: DbT, plans: Sequence[Plan[DbT]], span: Range, limit: int, max_bytes: int, clock: Clock) -> Page:
    """Return up to `limit` events, or up to `max_bytes` of them, that one of the plans yields."""
    if limit == 0:
        return Page([], span.high if span.is_descending else span.low, True)  # a page without events is complete
    found: list[StoredEvent] = []
    left = span
    width = span.high - span.low if all(plan.is_small for plan in plans) else _FIRST_WINDOW
    deadline_ns = clock.boot_ns() + _TIME_NS
    size = 0
    while not left.is_empty and len(found) <= limit and size <= max_bytes:
        window = _uncrowded(db, plans, left.window(max(1, width)))
        rows, read_through = _read_window(db, plans, window, limit + 1 - len(found), max_bytes - size)
        found += rows
        size += sum([len(row.raw) for row in rows])
        left = left.without(window) if read_through is None else left.after(read_through)
        width = min(max(window.width, 1) * _GROWTH, max(_LAST_WINDOW, window.width))
        if clock.boot_ns() > deadline_ns:  # checked after a window, so that each page makes progress
            break
    fitting = limit if size <= max_bytes else _fitting(found, limit, max_bytes)
    return _page(found, left, fitting)


def _uncrowded(db: DbT, plans: Sequence[Plan[DbT]], window: Range) -> Range:
    """Return the first part of a window in which no plan collects much more than a page."""
    while window.width > _FIRST_WINDOW and any(p.is_crowded(db, window.low, window.high, _CROWD) for p in plans):
        window = window.window(max(1, window.width // _GROWTH))
    return window


def _page(found: list[StoredEvent], left: Range, fitting: int) -> Page:
    """Cut the events that do not fit into the page; they prove that there are more."""
    if len(found) > fitting:
        del found[fitting:]
        return Page(found, found[-1].seq, False)
    if left.is_empty:
        return Page(found, left.high if not left.is_descending else left.low, True)
    return Page(found, left.high + 1 if left.is_descending else left.low, False)


def _fitting(found: list[StoredEvent], limit: int, max_bytes: int) -> int:
    """Return how many events fit into a page: at least one, at most `limit`, within its bytes."""
    size = 0
    for number, event in enumerate(found[:limit]):
        size += len(event.raw)
        if number and size > max_bytes:
            return number
    return limit


def _read_window(
    db: DbT, plans: Sequence[Plan[DbT]], window: Range, limit: int, max_bytes: int
) -> tuple[list[StoredEvent], int | None]:
    """Return the first matches in a window, and the seq through which they are complete, or None for the window."""
    lists: list[list[StoredEvent]] = []
    read_through: int | None = None
    for plan in plans:
        rows, has_more = plan.rows(db, window, limit, max_bytes)
        if has_more:  # nothing beyond its last row is complete
            read_through = rows[-1].seq if read_through is None else _earlier(window, read_through, rows[-1].seq)
        lists.append(plan.keep(rows))
    if len(lists) == 1:
        return lists[0], read_through
    merged = _merge(lists, window.is_descending)
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


def count_matches(db: DbT, plans: Sequence[Plan[DbT]], span: Range, clock: Clock) -> tuple[int, Range]:
    """Return how many events the plans yield, each once, and the rest of the range that there was no time for."""
    total, left = 0, span
    deadline_ns = clock.boot_ns() + _COUNT_NS
    while not left.is_empty:
        window = left.window(_LAST_WINDOW)
        total += _count_window(db, plans, window)
        left = left.without(window)
        if clock.boot_ns() > deadline_ns:
            break
    return total, left


def _count_window(db: DbT, plans: Sequence[Plan[DbT]], window: Range) -> int:
    if len(plans) == 1:
        return plans[0].count(db, window.low, window.high)
    return len(set[int]().union(*(plan.seqs(db, window.low, window.high) for plan in plans)))
