"""Queries on SQLite: plans of filters, and pages of matches in commit order.

One index drives a filter: that of the condition with the fewest entries in the range, as a bounded count estimates.
SQL checks columns; other tags are checked on the decoded event by the filter itself, so a query and a live
subscription never disagree. Pages are read in windows of seq that grow while they yield little; a page that has
used its time ends early and says how far it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import merge
from typing import Any

import apsw
import msgspec

from posthouse.model.clock import Clock
from posthouse.model.event import Coordinate, Event
from posthouse.model.filters import Filter
from posthouse.model.limits import FILTER_MAX_VALUES, SECOND_NS
from posthouse.model.node import NODE_SCHEME
from posthouse.relay.store.event_rows import (
    Page,
    Scope,
    StoredEvent,
    address_term,
    author_kind_term,
    author_term,
    is_indexed,
    kind_term,
    mesh_term,
    tag_term,
)
from posthouse.sqlite.statements import Statements

EVENTS_SQL = Statements("posthouse.relay.store.sqlite.schema.events", "events.sql")
_ESTIMATE_MOST = 2_000  # entries counted to compare drivers: enough to distinguish few from many
_KEY_AT = len(NODE_SCHEME) + 1
_decode_event = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Driver:
    """The index that yields the rows: a FROM and WHERE clause with its bindings, and the column that orders it."""

    source: str
    bindings: dict[str, Any]
    order: str = "t.seq"
    #: yields few rows, so ranges need no limit
    is_small: bool = False
    #: several terms, whose entries are all collected before the first row comes
    collected: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A filter prepared for ranges of seq."""

    driver: Driver
    bindings: dict[str, Any]
    #: the filter, if rows must still be compared with it
    residue: Filter | None

    def rows(self, db: apsw.Connection, window: Range, limit: int, max_bytes: int) -> tuple[list[StoredEvent], bool]:
        """Return the first rows of a window that may match, and True if it may have more; `keep` drops the others."""
        order = f"ORDER BY {self.driver.order} {'DESC' if window.is_descending else 'ASC'} LIMIT :limit"
        text = f"SELECT e.seq, e.raw FROM {self.driver.source} {EVENTS_SQL.visible} {EVENTS_SQL.wanted} {order}"
        rows, size = [], 0
        for seq, raw in db.execute(text, self.bindings | {"low": window.low, "high": window.high, "limit": limit}):
            rows.append(StoredEvent(seq, raw))
            size += len(raw)
            if size > max_bytes:
                return rows, True
        return rows, len(rows) == limit

    def is_crowded(self, db: apsw.Connection, low: int, high: int, most: int) -> bool:
        """Return True if more than `most` entries would be collected in (low, high], however few rows are wanted."""
        terms = self.driver.collected
        return bool(terms) and _count_entries(db, terms, (low, high), most + 1) > most

    def keep(self, rows: list[StoredEvent]) -> list[StoredEvent]:
        """Return the rows that match."""
        if self.residue is None:
            return rows
        return [row for row in rows if self.residue.matches(_decode_event(row.raw))]

    def seqs(self, db: apsw.Connection, low: int, high: int) -> set[int]:
        """Return the seqs of all matches in (low, high]."""
        bindings, source = self.bindings | {"low": low, "high": high}, self.driver.source
        if self.residue is not None:  # row by row: together they could be gigabytes
            text = f"SELECT e.seq, e.raw FROM {source} {EVENTS_SQL.visible} {EVENTS_SQL.wanted}"
            found = db.execute(text, bindings)
            return {seq for seq, raw in found if self.residue.matches(_decode_event(raw))}
        text = f"SELECT e.seq FROM {source} {EVENTS_SQL.visible} {EVENTS_SQL.wanted}"
        return {seq for (seq,) in db.execute(text, bindings)}

    def count(self, db: apsw.Connection, low: int, high: int) -> int:
        """Return the number of matches in (low, high]."""
        if self.residue is not None:
            return len(self.seqs(db, low, high))
        text = f"SELECT count(*) FROM {self.driver.source} {EVENTS_SQL.visible} {EVENTS_SQL.wanted}"
        number: int = db.execute(text, self.bindings | {"low": low, "high": high}).get
        return number


Span = tuple[int, int]


def plan_filter(db: apsw.Connection, wanted: Filter, scope: Scope, now_ns: int, span: Span) -> Plan:
    """Return the plan of a filter for a range of seq."""
    driver, driving_tag = _choose(db, wanted, span)
    rest = {name: values for name, values in wanted.tags.items() if name != driving_tag}
    residue = replace(wanted, tags=rest) if rest else None
    return Plan(driver, scope_bindings(scope, now_ns) | _filter_bindings(wanted) | driver.bindings, residue)


def plan_history(coordinate: Coordinate, scope: Scope, now_ns: int) -> Plan:
    """Return the plan for all versions of a coordinate."""
    driver = _terms_driver([address_term(coordinate)])
    conditions = _filter_bindings(Filter(authors=frozenset({coordinate.pubkey}), kinds=frozenset({coordinate.kind})))
    return Plan(driver, scope_bindings(scope, now_ns) | conditions | driver.bindings, None)


def scope_bindings(scope: Scope, now_ns: int) -> dict[str, Any]:
    """Return the bindings of the visibility conditions."""
    return {
        "now_s": now_ns // SECOND_NS,
        "node": bytes.fromhex(scope.node[_KEY_AT:]),
        "meshes": None if scope.meshes is None else _encode(sorted(scope.meshes)).decode(),
    }


def _filter_bindings(wanted: Filter) -> dict[str, Any]:
    return {
        "ids": _json(wanted.ids),
        "authors": _json(None if wanted.authors is None else [author[_KEY_AT:] for author in wanted.authors]),
        "kinds": _json(wanted.kinds),
        "mesh": wanted.mesh,
        "since_ns": wanted.since_ns,
        "until_ns": wanted.until_ns,
    }


def _json(values: Iterable[Any] | None) -> str | None:
    return None if values is None else _encode(list(values)).decode()


def _choose(db: apsw.Connection, wanted: Filter, span: Span) -> tuple[Driver, str | None]:
    if wanted.ids is not None:
        keys = apsw.carray(tuple(bytes.fromhex(id_) for id_ in wanted.ids))
        return Driver(EVENTS_SQL.from_ids, {"keys": keys}, order="e.seq", is_small=True), None
    candidates = list(_candidates(wanted))
    if not candidates:
        return Driver(EVENTS_SQL.from_all, {}, order="e.seq"), None
    if len(candidates) > 1:
        candidates.sort(key=lambda candidate: _count_entries(db, tuple(candidate[1]), span, _ESTIMATE_MOST))
    name, terms = candidates[0]
    return _terms_driver(terms), name


def _candidates(wanted: Filter) -> Iterable[tuple[str | None, list[bytes]]]:
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


def _count_entries(db: apsw.Connection, terms: tuple[bytes, ...], span: Span, most: int) -> int:
    count: int = db.execute(EVENTS_SQL.count_entries, (apsw.carray(terms), *span, most)).get
    return count


def _terms_driver(terms: list[bytes]) -> Driver:
    if len(terms) == 1:
        return Driver(EVENTS_SQL.from_one_term, {"term": terms[0]})
    several = tuple(terms)
    return Driver(EVENTS_SQL.from_terms, {"terms": apsw.carray(several)}, order="e.seq", collected=several)


_FIRST_WINDOW = 2_048  # seqs: a page of 500 from a term that a quarter of all events have
_LAST_WINDOW = 65_536  # bounds what one statement sorts and compares
_GROWTH = 4
_CROWD = 4_000  # entries collected for one window: a fraction of a millisecond
_TIME_NS = 500_000_000  # per page: far more than a sane filter needs, far below the bound of the read pool
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


def read_page(db: apsw.Connection, plans: list[Plan], span: Range, limit: int, max_bytes: int, clock: Clock) -> Page:
    """Return up to `limit` events, or up to `max_bytes` of them, that one of the plans yields."""
    if limit == 0:
        return Page([], span.high if span.is_descending else span.low, True)  # a page without events is complete
    found: list[StoredEvent] = []
    left = span
    width = span.high - span.low if all(plan.driver.is_small for plan in plans) else _FIRST_WINDOW
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
    return _page(found, left, limit, max_bytes)


def _uncrowded(db: apsw.Connection, plans: list[Plan], window: Range) -> Range:
    """Return the first part of a window in which no plan collects much more than a page."""
    while window.width > _FIRST_WINDOW and any(p.is_crowded(db, window.low, window.high, _CROWD) for p in plans):
        window = window.window(max(1, window.width // _GROWTH))
    return window


def _page(found: list[StoredEvent], left: Range, limit: int, max_bytes: int) -> Page:
    """Cut the extra event, which proves that there are more, and events beyond the bytes of a page."""
    fitting = _fitting(found, limit, max_bytes)
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
    db: apsw.Connection, plans: list[Plan], window: Range, limit: int, max_bytes: int
) -> tuple[list[StoredEvent], int | None]:
    """Return the first matches in a window, and the seq through which they are complete, or None for the window."""
    lists: list[list[StoredEvent]] = []
    read_through: int | None = None
    for plan in plans:
        rows, has_more = plan.rows(db, window, limit, max_bytes)
        if has_more:  # nothing beyond its last row is complete
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


def _count_window(db: apsw.Connection, plans: list[Plan], window: Range) -> int:
    if len(plans) == 1:
        return plans[0].count(db, window.low, window.high)
    return len(set[int]().union(*(plan.seqs(db, window.low, window.high) for plan in plans)))
