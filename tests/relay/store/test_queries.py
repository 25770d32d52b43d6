"""Stored queries against the model's own filter over everything that was written."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.model.clock import FakeClock
from posthouse.model.event import Event
from posthouse.model.filters import Filter
from posthouse.relay.store import query_pages
from posthouse.relay.store.event_rows import Query, Scope
from posthouse.relay.store.query_pages import Range
from posthouse.relay.store.sqlite import event_reads
from posthouse.relay.store.sqlite.queries import Plan
from posthouse.relay.store.sqlite.store import SqliteStore
from tests.relay.authors import ALICE, BOB, CAROL, Author
from tests.relay.store.contract import add, ids, read_all

AUTHORS = [ALICE, BOB, CAROL]
MESHES = ["main", "a", "b"]
KINDS = [1, 2, 1000, 10_000, 30_000]
VALUES = ["x", "y", "z", "", "é"]
BASE_NS = 1_700_000_000_000_000_000


def random_event(chance: random.Random) -> Event:
    author: Author = chance.choice(AUTHORS)
    kind = chance.choice(KINDS)
    tags = [("t", chance.choice(VALUES)), ("d", chance.choice(VALUES)), ("long", chance.choice(VALUES))]
    tags = chance.sample(tags, chance.randint(0, 3))
    if kind == 1000:
        tags = [("p", chance.choice(AUTHORS).node), ("c", str(chance.random()))]
    elif kind == 30_000 and all(tag[0] != "d" for tag in tags):
        tags.append(("d", "x"))
    if (mesh := chance.choice(MESHES)) != "main":
        tags.append(("mesh", mesh))
    return author.event(kind, *tags, content=str(chance.random()), created_at_ns=BASE_NS + chance.randint(0, 50))


def subsets(values: list[object]) -> st.SearchStrategy[frozenset[object] | None]:
    return st.none() | st.frozensets(st.sampled_from(values), min_size=1)


TIMES = st.none() | st.integers(BASE_NS, BASE_NS + 50)
TAGS = st.dictionaries(
    st.sampled_from(["t", "d", "p", "long"]),
    st.frozensets(st.sampled_from([*VALUES, ALICE.node, BOB.node]), min_size=1),
    max_size=3,
)
FILTERS = st.builds(
    Filter,
    authors=subsets([author.node for author in AUTHORS]),
    kinds=subsets(list(KINDS)),
    tags=TAGS,
    mesh=st.none() | st.sampled_from(MESHES),
    since_ns=TIMES,
    until_ns=TIMES,
)
SCOPES = st.builds(Scope, st.sampled_from([author.node for author in AUTHORS]), subsets(list(MESHES)))


def may_read(event: Event, scope: Scope) -> bool:
    if scope.meshes is not None and event.mesh not in scope.meshes:
        return False
    return event.kind != 1000 or scope.node in (event.pubkey, event.value("p"))


class Written:
    """A store and everything that was written to it."""

    def __init__(self, path: Path, events: list[Event]) -> None:
        self.store = SqliteStore(path, FakeClock())
        self.events = events

    async def fill(self) -> None:
        for start in range(0, len(self.events), 40):
            await add(self.store, *self.events[start : start + 40])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    chance = random.Random(3)
    made = Written(tmp_path_factory.mktemp("queries") / "relay.db", [random_event(chance) for _ in range(600)])
    asyncio.run(made.fill())
    yield made
    made.store.close()


@settings(max_examples=150, deadline=None)
@given(filters=st.lists(FILTERS, min_size=1, max_size=3), scope=SCOPES, limit=st.integers(1, 80), desc=st.booleans())
def test_stored_query_yields_what_a_look_at_every_event_yields(
    written: Written, filters: list[Filter], scope: Scope, limit: int, desc: bool
) -> None:
    expected = [
        event.id
        for event in written.events
        if may_read(event, scope) and any(wanted.matches(event) for wanted in filters)
    ]
    query = Query(filters, scope, limit=limit, is_descending=desc)
    assert ids(asyncio.run(read_all(written.store, query))) == (expected[::-1] if desc else expected)
    assert asyncio.run(written.store.count(filters, scope)) == len(expected)


@settings(max_examples=40, deadline=None)
@given(chosen=st.lists(st.integers(0, 599), min_size=1, max_size=20), scope=SCOPES)
def test_query_by_ids_yields_those_the_reader_may_see(written: Written, chosen: list[int], scope: Scope) -> None:
    wanted = Filter(ids=frozenset(written.events[place].id for place in chosen))
    expected = [event.id for event in written.events if wanted.matches(event) and may_read(event, scope)]
    assert ids(asyncio.run(read_all(written.store, Query([wanted], scope, limit=3)))) == expected


async def test_windows_of_any_width_give_the_same_pages(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    filters = [Filter(kinds=frozenset({1})), Filter(tags={"t": frozenset({"x", "y"})})]
    query = Query(filters, Scope(ALICE.node, None), limit=11)
    expected = ids(await read_all(written.store, query))
    for width in (1, 3, 64):
        monkeypatch.setattr(query_pages, "_FIRST_WINDOW", width)
        monkeypatch.setattr(query_pages, "_LAST_WINDOW", width * 2)
        assert ids(await read_all(written.store, query)) == expected


@pytest.mark.parametrize("is_descending", [False, True])
async def test_windows_that_shrink_where_matches_crowd_give_the_same_pages(
    written: Written, monkeypatch: pytest.MonkeyPatch, is_descending: bool
) -> None:
    filters = [Filter(kinds=frozenset({1, 2})), Filter(tags={"t": frozenset({"x", "y"})})]
    query = Query(filters, Scope(ALICE.node, None), limit=11, is_descending=is_descending)
    expected = ids(await read_all(written.store, query))
    for width, crowd in ((1, 0), (1, 2), (3, 5), (16, 2)):
        monkeypatch.setattr(query_pages, "_FIRST_WINDOW", width)
        monkeypatch.setattr(query_pages, "_CROWD", crowd)
        assert ids(await read_all(written.store, query)) == expected


async def test_no_window_collects_more_places_than_the_crowd_it_may(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_pages, "_FIRST_WINDOW", 4)
    monkeypatch.setattr(query_pages, "_CROWD", 8)
    crowded: list[int] = []
    read = query_pages._read_window

    def watch(db: apsw.Connection, plans: list[Plan], window: Range, limit: int, max_bytes: int) -> object:
        crowded.append(sum(plan.is_crowded(db, window.low, window.high, 8) for plan in plans if window.width > 4))
        return read(db, plans, window, limit, max_bytes)

    monkeypatch.setattr(query_pages, "_read_window", watch)
    await written.store.query(Query([Filter(kinds=frozenset(KINDS))], Scope(ALICE.node, None), limit=200))
    assert len(crowded) > 1
    assert not any(crowded)


async def test_page_that_runs_out_of_time_says_how_far_it_is_complete(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_pages, "_TIME_NS", 1)
    monkeypatch.setattr(query_pages, "_FIRST_WINDOW", 50)
    clock = FakeClock()
    monkeypatch.setattr(clock, "boot_ns", iter(range(0, 10_000, 1)).__next__)
    monkeypatch.setattr(written.store, "_clock", clock)
    scope = Scope(ALICE.node, None)
    wanted = Filter(kinds=frozenset({2}))
    page = await written.store.query(Query([wanted], scope))
    assert not page.is_end
    assert page.through_seq < 600
    expected = [event.id for event in written.events if wanted.matches(event)]
    for desc in (False, True):
        found = ids(await read_all(written.store, Query([wanted], scope, is_descending=desc)))
        assert found == (expected[::-1] if desc else expected)


async def test_counts_take_turns_on_one_read_of_the_pool(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_pages, "_COUNT_NS", -1)  # a step ends after one window
    monkeypatch.setattr(query_pages, "_LAST_WINDOW", 16)
    running: list[int] = []
    steps: list[int] = []
    count = query_pages.count_matches

    def watch(*arguments: Any) -> tuple[int, Range]:
        running.append(1)
        steps.append(len(running))
        try:
            return count(*arguments)
        finally:
            running.pop()

    monkeypatch.setattr(event_reads, "count_matches", watch)
    counts = [written.store.count([Filter()], Scope(ALICE.node, None)) for _ in range(12)]
    assert len(set(await asyncio.gather(*counts))) == 1
    assert len(steps) > 24
    assert max(steps) == 1
