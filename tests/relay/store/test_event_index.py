"""The newest events are found although their index is written later, and the index is right after any interruption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.event import Coordinate, Event
from posthouse.model.filters import Filter
from posthouse.relay.ops.maintenance import RULES, reindex_relay
from posthouse.relay.store.event_rows import Query, event_row
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite.event_index import INDEX_EVENTS
from posthouse.relay.store.sqlite.store import SqliteStore
from posthouse.sqlite.connection import Durability, open_reader, open_writer
from tests.relay.authors import ALICE, BOB
from tests.relay.store.contract import ALL, add, ids, read_all, write

MAX_PAGES = 5  # of a plain event: four, and the pages that are added to the file


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "relay.db", FakeClock())
    yield opened
    opened.close()


@pytest.fixture
def db(store: SqliteStore) -> Iterator[apsw.Connection]:
    connection = open_reader(store.path)
    yield connection
    connection.close()


def unindexed(db: apsw.Connection) -> int:
    statement = "SELECT count(*) FROM events WHERE seq > (SELECT indexed_through FROM index_state)"
    count: int = db.execute(statement).get
    return count


def store_head(db: apsw.Connection) -> int:
    head: int = db.execute("SELECT max(seq) FROM events").get
    return head


def findings(db: apsw.Connection) -> list[str]:
    return [finding for rule in RULES for finding in rule(db)]


async def add_singly(store: SqliteStore, count: int) -> list[Event]:
    events = [ALICE.event(1, ("t", "x"), content=str(number)) for number in range(count)]
    for event in events:
        await add(store, event)
    return events


def wal_frames(store: SqliteStore) -> int:
    """Return how many frames the write-ahead log has; its file is longer."""
    with closing(open_writer(store.path, Durability.FULL)) as db:
        frames, _copied = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    return frames


async def test_plain_event_changes_few_pages(store: SqliteStore) -> None:
    await add_singly(store, INDEX_EVENTS + 1)
    before, count = wal_frames(store), INDEX_EVENTS
    await add_singly(store, count)
    assert count < wal_frames(store) - before <= count * MAX_PAGES


def look_up(ids: Sequence[str], unit: Unit) -> dict[str, int]:
    return unit.known(ids)


async def test_ids_are_known_whether_they_are_indexed_or_not(store: SqliteStore, db: apsw.Connection) -> None:
    events = await add_singly(store, INDEX_EVENTS + 3)
    assert 0 < unindexed(db) < len(events)
    known = {event.id: seq for seq, event in enumerate(events, start=store_head(db) - len(events) + 1)}
    strangers = [BOB.event(content="elsewhere").id, events[0].id[:16] + "0" * 48]  # the second one has a known prefix
    for asked in ([*known, *strangers], [events[0].id], [events[-1].id], [strangers[0]], [strangers[1]], []):
        expected = {id_: known[id_] for id_ in asked if id_ in known}
        assert await store.known(asked) == expected
        assert await write(store, partial(look_up, asked)) == expected
    assert ids(await read_all(store, Query([Filter(ids=frozenset(known))], ALL))) == ids(events)
    for event in (events[0], events[-1]):
        found = await store.event(event.id, ALL)
        assert found is not None
        assert found.seq == known[event.id]


async def test_ids_of_a_failed_unit_are_not_known(store: SqliteStore) -> None:
    lost = BOB.event(content="lost")

    def fail(unit: Unit) -> None:
        unit.add_events([event_row(lost, lost.canonical())])
        assert lost.id in unit.known([lost.id])
        raise ValueError("a later part of the unit fails")

    kept = (await add_singly(store, 2))[-1]
    with pytest.raises(ValueError, match="later part"):
        await write(store, fail)
    assert list(await write(store, lambda unit: unit.known([lost.id, kept.id]))) == [kept.id]


async def test_ids_of_an_older_store_are_indexed_when_it_is_opened(store: SqliteStore) -> None:
    events = await add_singly(store, INDEX_EVENTS + 3)
    store.close()
    with closing(open_writer(store.path, Durability.FULL)) as old:
        old.execute("DROP TABLE event_ids; CREATE INDEX events_by_id ON events (substr(id, 1, 8))")
        old.execute("UPDATE schema_versions SET version = 10 WHERE component = 'relay'")
    again = SqliteStore(store.path, FakeClock())
    known = await write(again, lambda unit: unit.known([event.id for event in events]))
    assert list(known) == ids(events)
    with closing(open_reader(store.path)) as db:
        assert findings(db) == []
    again.close()


async def test_every_condition_finds_events_that_are_not_indexed(store: SqliteStore, db: apsw.Connection) -> None:
    await add(store, BOB.event(2))
    events = await add_singly(store, 3)
    versions = [ALICE.event(30_000, ("d", d), content=content) for d, content in (("a", "1"), ("a", "2"), ("b", "3"))]
    await add(store, *versions)
    assert unindexed(db) == 6
    for wanted in (
        Filter(authors=frozenset({ALICE.node}), kinds=frozenset({1})),
        Filter(kinds=frozenset({1})),
        Filter(tags={"t": frozenset({"x"})}),
        Filter(tags={"t": frozenset({"x", "y"})}, mesh="main"),
    ):
        assert ids(await read_all(store, Query([wanted], ALL, limit=2))) == ids(events)
        assert await store.count([wanted], ALL) == 3
    history = await store.history(Coordinate(30_000, ALICE.node, "a"), Query([], ALL, limit=5))
    assert len(history.events) == 2
    assert await store.count([Filter(tags={"t": frozenset({"y"})})], ALL) == 0


async def test_index_follows_the_events_in_bulk(store: SqliteStore, db: apsw.Connection) -> None:
    for number in range(2 * INDEX_EVENTS):
        await add(store, ALICE.event(content=str(number)))
        assert unindexed(db) < INDEX_EVENTS
    assert findings(db) == []


async def test_killed_store_indexes_the_rest_with_its_next_event(store: SqliteStore, tmp_path: Path) -> None:
    events = await add_singly(store, 5)
    copy = tmp_path / "killed" / "relay.db"
    copy.parent.mkdir(mode=0o700)
    for suffix in ("", "-wal"):
        copy.with_name(f"relay.db{suffix}").write_bytes(store.path.with_name(f"relay.db{suffix}").read_bytes())
    again = SqliteStore(copy, FakeClock())
    db = open_reader(copy)
    assert unindexed(db) == 4
    assert ids(await read_all(again, Query([Filter(kinds=frozenset({1}))], ALL))) == ids(events)
    await add(again, BOB.event())
    assert unindexed(db) == 0
    assert findings(db) == []
    db.close()
    again.close()


async def test_failed_unit_leaves_no_entries(store: SqliteStore, db: apsw.Connection) -> None:
    await add_singly(store, 3)

    def fail(unit: Unit) -> None:
        events = [BOB.event(content=str(number)) for number in range(INDEX_EVENTS)]
        unit.add_events([event_row(event, event.canonical()) for event in events])
        raise ValueError("a later part of the unit fails")

    with pytest.raises(ValueError, match="later part"):
        await write(store, fail)
    await add_singly(store, 2)
    assert findings(db) == []
    assert (await store.usage())["main"].events == 5


async def test_removed_events_leave_index_and_usage(store: SqliteStore, db: apsw.Connection) -> None:
    kept = await add_singly(store, 2)
    removed = ALICE.event(1, ("t", "x"), content="removed")
    await add(store, removed)
    await write(store, lambda unit: unit.erase(unit.find_contents([removed.id]), ALICE.node, "test"))
    assert ids(await read_all(store, Query([Filter(kinds=frozenset({1}))], ALL))) == ids(kept)
    assert findings(db) == []
    assert (await write(store, lambda unit: unit.mesh_usage("main"))).events == 2


async def test_rebuilt_store_has_counted_and_indexed_everything(store: SqliteStore, tmp_path: Path) -> None:
    await add_singly(store, 4)
    store.close()
    reindex_relay(store.path)
    db = open_reader(store.path)
    assert unindexed(db) == 0
    assert findings(db) == []
    db.close()
