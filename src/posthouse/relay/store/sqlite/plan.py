"""How a filter is answered: one index drives, everything else is checked on the rows it yields.

The driver is the condition with the fewest entries in the range, judged by a bounded look at the index. Conditions on
columns are checked in SQL; tags that are not the driver's are compared on the decoded event, exactly as the filter
itself would, so that a query and a live subscription can never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import apsw
import msgspec

from posthouse.model.coordinate import Coordinate
from posthouse.model.event import Event
from posthouse.model.filters import Filter
from posthouse.model.limits import FILTER_MAX_VALUES, SECOND_NS
from posthouse.model.node import NODE_SCHEME
from posthouse.relay.store.interface import Scope, StoredEvent
from posthouse.relay.store.terms import (
    address_term,
    author_kind_term,
    author_term,
    is_indexed,
    kind_term,
    mesh_term,
    tag_term,
)
from posthouse.sqlite.statements import Statements

SQL = Statements("posthouse.relay.store.sqlite", "relay.sql")
_ESTIMATE_MOST = 2_000  # entries looked at to compare drivers: enough to tell few from many
_KEY_AT = len(NODE_SCHEME) + 1
_decode = msgspec.json.Decoder(Event).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Driver:
    """Where the rows come from: a FROM and WHERE clause with its own bindings, and the column that orders it."""

    source: str
    bindings: dict[str, Any]
    order: str = "t.seq"
    #: few rows at most, so that ranges need no limit
    is_small: bool = False
    #: several terms, whose places are all collected before the first row comes
    collected: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A filter made ready to be run over ranges of seq."""

    driver: Driver
    bindings: dict[str, Any]
    #: the filter, when rows must still be compared with it
    residue: Filter | None

    def rows(self, db: apsw.Connection, low: int, high: int, limit: int, *, is_descending: bool) -> list[StoredEvent]:
        """Return the first rows of (low, high] that may match; `keep` decides finally."""
        order = f"ORDER BY {self.driver.order} {'DESC' if is_descending else 'ASC'} LIMIT :limit"
        text = f"SELECT e.seq, e.raw FROM {self.driver.source} {SQL.visible} {SQL.wanted} {order}"
        bindings = self.bindings | {"low": low, "high": high, "limit": limit}
        return [StoredEvent(seq, raw) for seq, raw in db.execute(text, bindings)]

    def is_crowded(self, db: apsw.Connection, low: int, high: int, most: int) -> bool:
        """Tell whether more than `most` places would be collected in (low, high], however few rows are wanted."""
        terms = self.driver.collected
        return bool(terms) and _count_places(db, terms, (low, high), most + 1) > most

    def keep(self, rows: list[StoredEvent]) -> list[StoredEvent]:
        """Return the rows that match."""
        if self.residue is None:
            return rows
        return [row for row in rows if self.residue.matches(_decode(row.raw))]

    def seqs(self, db: apsw.Connection, low: int, high: int) -> set[int]:
        """Return the seqs of all matches in (low, high]."""
        if self.residue is not None:
            return {row.seq for row in self.keep(self.rows(db, low, high, -1, is_descending=False))}
        text = f"SELECT e.seq FROM {self.driver.source} {SQL.visible} {SQL.wanted}"
        return {seq for (seq,) in db.execute(text, self.bindings | {"low": low, "high": high})}


Span = tuple[int, int]


def plan_filter(db: apsw.Connection, wanted: Filter, scope: Scope, now_ns: int, span: Span) -> Plan:
    """Return the plan of a filter for a range of seq."""
    driver, driving_tag = _choose(db, wanted, span)
    rest = {name: values for name, values in wanted.tags.items() if name != driving_tag}
    residue = replace(wanted, tags=rest) if rest else None
    return Plan(driver, scope_bindings(scope, now_ns) | _filter_bindings(wanted) | driver.bindings, residue)


def plan_history(coordinate: Coordinate, scope: Scope, now_ns: int) -> Plan:
    """Return the plan that yields all versions of a coordinate."""
    driver = _terms_driver([address_term(coordinate)])
    conditions = _filter_bindings(Filter(authors=frozenset({coordinate.pubkey}), kinds=frozenset({coordinate.kind})))
    return Plan(driver, scope_bindings(scope, now_ns) | conditions | driver.bindings, None)


def scope_bindings(scope: Scope, now_ns: int) -> dict[str, Any]:
    """Return what the conditions of visibility are bound to."""
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
        return Driver(SQL.from_ids, {"keys": keys}, order="e.seq", is_small=True), None
    candidates = list(_candidates(wanted))
    if not candidates:
        return Driver(SQL.from_all, {}, order="e.seq"), None
    if len(candidates) > 1:
        candidates.sort(key=lambda candidate: _count_places(db, tuple(candidate[1]), span, _ESTIMATE_MOST))
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


def _count_places(db: apsw.Connection, terms: tuple[bytes, ...], span: Span, most: int) -> int:
    count: int = db.execute(SQL.count_places, (apsw.carray(terms), *span, most)).get
    return count


def _terms_driver(terms: list[bytes]) -> Driver:
    if len(terms) == 1:
        return Driver(SQL.from_one_term, {"term": terms[0]})
    several = tuple(terms)
    return Driver(SQL.from_terms, {"terms": apsw.carray(several)}, order="e.seq", collected=several)
