"""Queries on SQLite: plans of filters for posthouse.relay.store.query_pages, and rows as deletion sees them.

One index drives a filter: that of the condition with the fewest entries in the range, as a bounded count estimates.
The newest events are not in it yet (event_index.py); they are read one by one and compared with the whole filter.
SQL checks columns; other tags are checked on the decoded event by the filter itself, so a query and a live
subscription never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import apsw
import msgspec

from posthouse.model.event import Coordinate, Event
from posthouse.model.filters import Filter
from posthouse.model.limits import SECOND_NS
from posthouse.model.node import NODE_SCHEME
from posthouse.relay.store.event_rows import ContentRow, Scope, StoredEvent, address_term
from posthouse.relay.store.query_pages import Range, Span, driving_terms
from posthouse.storage.sql_files import Statements

EVENTS_SQL = Statements("posthouse.relay.store.sqlite.schema.events", "events.sql")
_OF_IDS = f"{EVENTS_SQL.content_rows} {EVENTS_SQL.from_ids}"
_KNOWN_IDS = f"{EVENTS_SQL.known_ids} {EVENTS_SQL.from_ids}"
_FROM_IDS_WITHIN = f"{EVENTS_SQL.from_ids} {EVENTS_SQL.within}"
_ESTIMATE_MOST = 2_000  # entries counted to compare drivers: enough to distinguish few from many
_ROWS_AT_ONCE = 8  # between two looks at their size: as much as a page more, if all are of the largest size
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
    #: the source of events that are not in the index yet; None: this one has them too
    unindexed: str | None = None


class Part(NamedTuple):
    """A range of seq, and how its rows are read."""

    low: int
    high: int
    source: str
    order: str
    #: the conditions that rows must still be compared with
    residue: Filter | None
    is_indexed: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A filter prepared for ranges of seq."""

    driver: Driver
    bindings: dict[str, Any]
    #: the tags that neither the driver nor SQL has checked
    residue: Filter | None
    #: all tags, for rows that the index does not have
    unindexed_residue: Filter | None
    indexed_through: int

    @property
    def is_small(self) -> bool:
        return self.driver.is_small

    def rows(self, db: apsw.Connection, window: Range, limit: int, max_bytes: int) -> tuple[list[StoredEvent], bool]:
        """Return the first rows of a window that may match, and True if it may have more; `keep` drops the others."""
        rows: list[StoredEvent] = []
        size = 0
        direction = "DESC" if window.is_descending else "ASC"
        for part in self._parts(window.low, window.high)[:: -1 if window.is_descending else 1]:
            conditions = f"{EVENTS_SQL.visible} {EVENTS_SQL.wanted} ORDER BY {part.order} {direction} LIMIT :limit"
            wanted = limit - len(rows)
            bounds = {"low": part.low, "high": part.high, "limit": wanted if part.is_indexed else -1}
            text = f"SELECT e.seq, e.raw FROM {part.source} {conditions}"
            found: Iterator[tuple[int, bytes]] = db.execute(text, self.bindings | bounds)
            if not part.is_indexed:  # few rows: they are compared here and not page by page
                found = islice((row for row in found if _matches(part.residue, row[1])), wanted)
            while some := [StoredEvent(seq, raw) for seq, raw in islice(found, _ROWS_AT_ONCE)]:
                rows += some
                size += sum([len(row.raw) for row in some])
                if size > max_bytes:
                    return rows, True
        return rows, len(rows) == limit

    def is_crowded(self, db: apsw.Connection, low: int, high: int, most: int) -> bool:
        """Return True if more than `most` entries would be collected in (low, high], however few rows are wanted."""
        terms = self.driver.collected
        return bool(terms) and _count_entries(db, terms, (low, high), most + 1) > most

    def keep(self, rows: list[StoredEvent]) -> list[StoredEvent]:
        """Return the rows that match."""
        return rows if self.residue is None else [row for row in rows if _matches(self.residue, row.raw)]

    def seqs(self, db: apsw.Connection, low: int, high: int) -> set[int]:
        """Return the seqs of all matches in (low, high]."""
        return set[int]().union(*(self._seqs_of(db, part) for part in self._parts(low, high)))

    def count(self, db: apsw.Connection, low: int, high: int) -> int:
        """Return the number of matches in (low, high]."""
        return sum([self._count_of(db, part) for part in self._parts(low, high)])

    def _parts(self, low: int, high: int) -> list[Part]:
        """Return the part of (low, high] that the driver has, and the part that is not in the index yet."""
        driver, through = self.driver, self.indexed_through
        if driver.unindexed is None or high <= through:
            return [Part(low, high, driver.source, driver.order, self.residue, True)]
        parts = [Part(low, through, driver.source, driver.order, self.residue, True)] if low < through else []
        return [*parts, Part(max(low, through), high, driver.unindexed, "e.seq", self.unindexed_residue, False)]

    def _seqs_of(self, db: apsw.Connection, part: Part) -> set[int]:
        bindings = self.bindings | {"low": part.low, "high": part.high}
        if part.residue is not None:  # row by row: together they could be gigabytes
            text = f"SELECT e.seq, e.raw FROM {part.source} {EVENTS_SQL.visible} {EVENTS_SQL.wanted}"
            return {seq for seq, raw in db.execute(text, bindings) if _matches(part.residue, raw)}
        text = f"SELECT e.seq FROM {part.source} {EVENTS_SQL.visible} {EVENTS_SQL.wanted}"
        return {seq for (seq,) in db.execute(text, bindings)}

    def _count_of(self, db: apsw.Connection, part: Part) -> int:
        if part.residue is not None:
            return len(self._seqs_of(db, part))
        text = f"SELECT count(*) FROM {part.source} {EVENTS_SQL.visible} {EVENTS_SQL.wanted}"
        number: int = db.execute(text, self.bindings | {"low": part.low, "high": part.high}).get
        return number


def plan_filter(db: apsw.Connection, wanted: Filter, scope: Scope, now_ns: int, span: Span) -> Plan:
    """Return the plan of a filter for a range of seq."""
    driver, driving_tag = _choose(db, wanted, span)
    rest = {name: values for name, values in wanted.tags.items() if name != driving_tag}
    residue, unindexed_residue = (Filter(tags=tags) if tags else None for tags in (rest, wanted.tags))
    bindings = scope_bindings(scope, now_ns) | filter_bindings(wanted) | driver.bindings
    return Plan(driver, bindings, residue, unindexed_residue, _indexed_through(db))


def plan_history(db: apsw.Connection, coordinate: Coordinate, scope: Scope, now_ns: int) -> Plan:
    """Return the plan for all versions of a coordinate."""
    driver = replace(_terms_driver([address_term(coordinate)]), unindexed=EVENTS_SQL.unindexed_of_address)
    conditions = filter_bindings(Filter(authors=frozenset({coordinate.pubkey}), kinds=frozenset({coordinate.kind})))
    bindings = scope_bindings(scope, now_ns) | conditions | driver.bindings
    return Plan(driver, bindings, None, None, _indexed_through(db))


def _indexed_through(db: apsw.Connection) -> int:
    through: int = db.execute(EVENTS_SQL.indexed_through).get
    return through


def _matches(residue: Filter | None, raw: bytes) -> bool:
    return residue is None or residue.matches(_decode_event(raw))


def scope_bindings(scope: Scope, now_ns: int) -> dict[str, Any]:
    """Return the bindings of the visibility conditions."""
    return {
        "now_s": now_ns // SECOND_NS,
        "node": bytes.fromhex(scope.node[_KEY_AT:]),
        "former": _encode([node[_KEY_AT:] for node in scope.former]).decode() if scope.former else None,
        "meshes": None if scope.meshes is None else _encode(sorted(scope.meshes)).decode(),
    }


def filter_bindings(wanted: Filter) -> dict[str, Any]:
    """Return the bindings of the conditions of a filter, except tags."""
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
        return Driver(_FROM_IDS_WITHIN, _keys(list(wanted.ids)), order="e.seq", is_small=True), None
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
        return Driver(EVENTS_SQL.from_one_term, {"term": terms[0]}, unindexed=EVENTS_SQL.from_all)
    several = tuple(terms)
    bindings = {"terms": apsw.carray(several)}
    return Driver(EVENTS_SQL.from_terms, bindings, "e.seq", collected=several, unindexed=EVENTS_SQL.from_all)


#: Returns an event id as the store keeps it.
id_key = bytes.fromhex


def id_keys(ids: Sequence[str]) -> tuple[bytes, ...]:
    """Return event ids as the store keeps them."""
    return tuple(map(id_key, ids))


def _keys(ids: Sequence[str]) -> dict[str, Any]:
    """Return the bindings of statements that look for these ids."""
    return {"keys": apsw.carray(id_keys(ids))}


def known_ids(db: apsw.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return the seq of each of these ids that the store has."""
    return {key.hex(): seq for key, seq in db.execute(_KNOWN_IDS, _keys(ids))} if ids else {}


def contents_of_ids(db: apsw.Connection, ids: Sequence[str]) -> list[ContentRow]:
    """Return the events with these ids, those without content included."""
    return content_rows(db, _OF_IDS, _keys(ids)) if ids else []


def content_rows(db: apsw.Connection, statement: str, bindings: Any) -> list[ContentRow]:
    """Return the rows of a statement that selects content_rows."""
    rows: list[Any] = db.execute(statement, bindings).fetchall()
    return [ContentRow(*row) for row in ((*values, bool(is_erased)) for *values, is_erased in rows)]
