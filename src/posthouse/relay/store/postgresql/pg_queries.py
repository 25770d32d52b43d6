"""Queries on PostgreSQL: plans of filters for posthouse.relay.store.query_pages, and rows as deletion sees them.

One index drives a filter: that of the condition with the fewest entries in the range, as a bounded count estimates.
SQL checks columns; other tags are checked on the decoded event by the filter itself, so a query and a live
subscription never disagree. All statements of a query have the same parameters: schema/events.sql lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from posthouse.model.event import Coordinate, Event
from posthouse.model.filters import Filter
from posthouse.model.limits import SECOND_NS
from posthouse.model.node import NODE_SCHEME, node_from_key
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.relay.store.event_rows import ContentRow, Scope, StoredEvent, address_term
from posthouse.relay.store.postgresql.pg_journal import SCHEMA
from posthouse.relay.store.query_pages import Range, Span, driving_terms
from posthouse.storage.sql_files import Statements

EVENTS_SQL = Statements(SCHEMA, "events.sql")
_OF_IDS = f"{EVENTS_SQL.content_rows}\n{EVENTS_SQL.of_ids}"
_ESTIMATE_MOST = 2_000  # entries counted to compare drivers: enough to distinguish few from many
_KEY_AT = len(NODE_SCHEME) + 1
_CONDITIONS = f"{EVENTS_SQL.visible}\n{EVENTS_SQL.wanted}"
_decode_event = msgspec.json.Decoder(Event).decode


@dataclass(frozen=True, slots=True)
class Driver:
    """The index that yields the rows: a FROM and WHERE clause and its parameter."""

    source: str
    parameter: bytes | list[bytes] | None = None
    #: yields few rows, so ranges need no limit
    is_small: bool = False
    #: several terms, whose entries are all collected before the first row comes
    collected: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class PgPlan:
    """Implements posthouse.relay.store.query_pages.Plan."""

    driver: Driver
    scope: tuple[Any, ...]
    conditions: tuple[Any, ...]
    #: the filter, if rows must still be compared with it
    residue: Filter | None

    @property
    def is_small(self) -> bool:
        return self.driver.is_small

    def rows(self, db: ServerConnection, window: Range, limit: int, max_bytes: int) -> tuple[list[StoredEvent], bool]:
        order = f"ORDER BY e.seq {'DESC' if window.is_descending else 'ASC'} LIMIT $13"
        rows, size = [], 0
        for seq, raw in self._select(db, "SELECT e.seq, e.raw FROM", order, window.low, window.high, limit):
            rows.append(StoredEvent(seq, raw))
            size += len(raw)
            if size > max_bytes:
                return rows, True
        return rows, len(rows) == limit

    def is_crowded(self, db: ServerConnection, low: int, high: int, most: int) -> bool:
        terms = self.driver.collected
        return bool(terms) and _count_entries(db, terms, (low, high), most + 1) > most

    def keep(self, rows: list[StoredEvent]) -> list[StoredEvent]:
        if self.residue is None:
            return rows
        return [row for row in rows if self.residue.matches(_decode_event(row.raw))]

    def seqs(self, db: ServerConnection, low: int, high: int) -> set[int]:
        if self.residue is None:
            return {seq for (seq,) in self._select(db, "SELECT e.seq FROM", "", low, high)}
        found = self._select(db, "SELECT e.seq, e.raw FROM", "", low, high)
        return {seq for seq, raw in found if self.residue.matches(_decode_event(raw))}

    def count(self, db: ServerConnection, low: int, high: int) -> int:
        if self.residue is not None:
            return len(self.seqs(db, low, high))
        ((number,),) = self._select(db, "SELECT count(*) FROM", "", low, high)
        return int(number)

    def _select(
        self, db: ServerConnection, columns: str, order: str, low: int, high: int, *limit: int
    ) -> list[tuple[Any, ...]]:
        text = "\n".join((columns, self.driver.source, _CONDITIONS, order))
        return db.rows(text, *self.scope, low, high, *self.conditions, self.driver.parameter, *limit)


def plan_filter(db: ServerConnection, wanted: Filter, scope: Scope, now_ns: int, span: Span) -> PgPlan:
    """Return the plan of a filter for a range of seq."""
    driver, driving_tag = _choose(db, wanted, span)
    rest = {name: values for name, values in wanted.tags.items() if name != driving_tag}
    residue = replace(wanted, tags=rest) if rest else None
    return PgPlan(driver, scope_parameters(scope, now_ns), filter_parameters(wanted), residue)


def plan_history(coordinate: Coordinate, scope: Scope, now_ns: int) -> PgPlan:
    """Return the plan for all versions of a coordinate."""
    conditions = filter_parameters(Filter(authors=frozenset({coordinate.pubkey}), kinds=frozenset({coordinate.kind})))
    return PgPlan(_terms_driver([address_term(coordinate)]), scope_parameters(scope, now_ns), conditions, None)


def scope_parameters(scope: Scope, now_ns: int) -> tuple[int, list[bytes], list[str] | None]:
    """Return the parameters of the visibility conditions."""
    meshes = None if scope.meshes is None else sorted(scope.meshes)
    nodes = [bytes.fromhex(node[_KEY_AT:]) for node in (scope.node, *scope.former)]
    return now_ns // SECOND_NS, nodes, meshes


def filter_parameters(wanted: Filter) -> tuple[Any, ...]:
    """Return the parameters of the conditions of a filter, except tags."""
    return (
        _keys(wanted.ids),
        _keys(None if wanted.authors is None else [author[_KEY_AT:] for author in wanted.authors]),
        None if wanted.kinds is None else list(wanted.kinds),
        wanted.mesh,
        wanted.since_ns,
        wanted.until_ns,
    )


def _keys(values: Iterable[str] | None) -> list[bytes] | None:
    return None if values is None else [bytes.fromhex(value) for value in values]


def _choose(db: ServerConnection, wanted: Filter, span: Span) -> tuple[Driver, str | None]:
    if wanted.ids is not None:
        return Driver(EVENTS_SQL.from_ids, _keys(wanted.ids), is_small=True), None
    candidates = list(driving_terms(wanted))
    if not candidates:
        return Driver(EVENTS_SQL.from_all), None
    if len(candidates) > 1:
        candidates.sort(key=lambda candidate: _count_entries(db, tuple(candidate[1]), span, _ESTIMATE_MOST))
    name, terms = candidates[0]
    return _terms_driver(terms), name


def _count_entries(db: ServerConnection, terms: tuple[bytes, ...], span: Span, most: int) -> int:
    count: int = db.value(EVENTS_SQL.count_entries, list(terms), *span, most)
    return count


def _terms_driver(terms: list[bytes]) -> Driver:
    if len(terms) == 1:
        return Driver(EVENTS_SQL.from_one_term, terms[0])
    return Driver(EVENTS_SQL.from_terms, terms, collected=tuple(terms))


def contents_of_ids(db: ServerConnection, ids: Sequence[str]) -> list[ContentRow]:
    """Return the events with these ids, those without content included."""
    return content_rows(db, _OF_IDS, [bytes.fromhex(id_) for id_ in ids]) if ids else []


def content_rows(db: ServerConnection, statement: str, *parameters: Any) -> list[ContentRow]:
    """Return the rows of a statement that selects content_rows."""
    return [
        ContentRow(
            seq, id_.hex(), node_from_key(author), kind, at_ns, mesh, recipient and node_from_key(recipient), *rest
        )
        for seq, id_, author, kind, at_ns, mesh, recipient, *rest in db.rows(statement, *parameters)
    ]
