"""Which event of a line is current, and that a rebuilt index says the same as the one kept along."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path
from typing import Any

import apsw
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.model.clock import FakeClock
from posthouse.model.event import Event, coordinate_of, decode_event
from posthouse.relay.ops.maintenance import RULES
from posthouse.relay.store.event_rows import Scope
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite.store import SqliteStore, SqliteUnit
from tests.relay.authors import ALICE, BOB
from tests.relay.store.contract import add, write

SCOPE = Scope(ALICE.node, None)
START_NS = FakeClock().wall_ns()


def derived(db: apsw.Connection) -> tuple[list[Any], list[Any]]:
    terms = db.execute("SELECT term, seq FROM event_terms ORDER BY term, seq").fetchall()
    current = db.execute("SELECT address, created_at_ns, id, event_seq FROM current_events ORDER BY address").fetchall()
    return terms, current


def index_all(unit: Unit) -> None:
    """Index the newest events now, not with later ones."""
    assert isinstance(unit, SqliteUnit)
    unit._index.write()


def findings(db: apsw.Connection) -> list[str]:
    return [finding for rule in RULES for finding in rule(db)]


async def current_id(store: SqliteStore, event: Event) -> str | None:
    found = await store.current(coordinate_of(event), SCOPE)
    return None if found is None else decode_event(found.raw).id


async def test_both_arrival_orders_of_a_tie_resolve_alike(tmp_path: Path) -> None:
    tied = [ALICE.event(30_000, ("d", "x"), content=str(number), created_at_ns=5) for number in range(3)]
    largest = max(event.id for event in tied)
    for number, order in enumerate(itertools.permutations(tied)):
        store = SqliteStore(tmp_path / f"{number}.db", FakeClock())
        for event in order:
            await add(store, event)
        assert await current_id(store, tied[0]) == largest
        store.close()


async def test_tie_within_one_unit_resolves_like_one_across_units(tmp_path: Path) -> None:
    tied = [ALICE.event(10_000, content=str(number), created_at_ns=5) for number in range(8)]
    store = SqliteStore(tmp_path / "relay.db", FakeClock())
    await add(store, *tied)
    assert await current_id(store, tied[0]) == max(event.id for event in tied)
    store.close()


VERSIONS = st.lists(
    st.tuples(
        st.sampled_from([ALICE, BOB]),
        st.sampled_from([1, 10_000, 30_000, 30_001]),
        st.sampled_from(["", "x", "/"]),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=24,
)


@settings(max_examples=40, deadline=None)
@given(versions=VERSIONS, sweeps=st.booleans())
def test_reindex_equals_the_index_that_was_kept_along(versions: list[Any], sweeps: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_compare(Path(folder) / "relay.db", versions, sweeps))


async def _compare(path: Path, versions: list[Any], sweeps: bool) -> None:
    clock = FakeClock()
    store = SqliteStore(path, clock)
    try:
        events = [_version(number, *version) for number, version in enumerate(versions)]
        for start in range(0, len(events), 5):
            await add(store, *events[start : start + 5])
        if sweeps:
            clock.advance(100)
            await write(store, lambda unit: unit.sweep_expired(clock.wall_ns(), 100))
        await write(store, index_all)
        before = await store._store.pool.run(derived)
        assert await store._store.pool.run(findings) == []
        await write(store, lambda unit: unit.reindex())
        assert await store._store.pool.run(derived) == before
        await _check_current(store, [event for event in events if not sweeps or event.expiration_s is None])
    finally:
        store.close()


def _version(number: int, author: Any, kind: int, d: str, at_ns: int, expires: bool) -> Event:
    tags = [("d", d), ("t", str(number % 2))]
    if expires:
        tags.append(("expiration", str(START_NS // 1_000_000_000 + 50)))
    event: Event = author.event(kind, *tags, content=str(number), created_at_ns=at_ns)
    return event


async def _check_current(store: SqliteStore, events: list[Event]) -> None:
    """Compare every line with its largest event."""
    lines: dict[Any, Event] = {}
    for event in events:
        if event.kind != 1 and (event.replace_key not in lines or event.is_newer_than(lines[event.replace_key])):
            lines[event.replace_key] = event
    for event in lines.values():
        assert await current_id(store, event) == event.id
