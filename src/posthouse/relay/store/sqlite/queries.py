"""Queries on SQLite: plans of filters for posthouse.relay.store.query_pages.

One index drives a filter: that of the condition with the fewest entries in the range, as a bounded count estimates.
SQL checks columns; other tags are checked on the decoded event by the filter itself, so a query and a live
subscription never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import apsw
import msgspec

from posthouse.model.event import Coordinate, Event
from posthouse.model.filters import Filter
from posthouse.model.limits import SECOND_NS
from posthouse.model.node import NODE_SCHEME
from posthouse.relay.store.event_rows import Scope, StoredEvent, address_term
from posthouse.relay.store.query_pages import Range, Span, driving_terms
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

    @property
    def is_small(self) -> bool:
        return self.driver.is_small

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
    candidates = list(driving_terms(wanted))
    if not candidates:
        return Driver(EVENTS_SQL.from_all, {}, order="e.seq"), None
    if len(candidates) > 1:
        candidates.sort(key=lambda candidate: _count_entries(db, tuple(candidate[1]), span, _ESTIMATE_MOST))
    name, terms = candidates[0]
    return _terms_driver(terms), name


def _count_entries(db: apsw.Connection, terms: tuple[bytes, ...], span: Span, most: int) -> int:
    count: int = db.execute(EVENTS_SQL.count_entries, (apsw.carray(terms), *span, most)).get
    return count


def _terms_driver(terms: list[bytes]) -> Driver:
    if len(terms) == 1:
        return Driver(EVENTS_SQL.from_one_term, {"term": terms[0]})
    several = tuple(terms)
    return Driver(EVENTS_SQL.from_terms, {"terms": apsw.carray(several)}, order="e.seq", collected=several)
