"""Damage of the file: check names it, reindex and export save what can be saved, and a running relay reports it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest

from posthouse.keys import keyfile
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.filters import Filter
from posthouse.model.lock_api import LockGrant
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.ops.maintenance import check_relay, check_rules, reindex_relay
from posthouse.relay.ops.salvage import export_relay, import_relay
from posthouse.relay.server import KEY_NAME
from posthouse.relay.store.event_rows import StoredEvent
from posthouse.relay.store.high_water import MarkFile
from posthouse.relay.wire.accept_results import Accepted
from posthouse.relay.wire.lock_operations import Acquire
from tests.relay.authors import ALICE, BOB, Author
from tests.relay.edge import Edge, running

RELAY = Author(99).node
EVENTS = 120


@asynccontextmanager
async def engine(folder: Path, clock: FakeClock) -> AsyncIterator[RelayEngine]:
    core = await RelayEngine.start(EngineSettings(folder, RELAY, admins=(ALICE.node,)), clock)
    try:
        yield core
    finally:
        await core.close()


async def fill(folder: Path, clock: FakeClock) -> None:
    """Write events, replaceable ones, a message that waits and one that is confirmed, members and a lock."""
    async with engine(folder, clock) as core:
        for number in range(EVENTS):
            await core.accept(ALICE.raw(1, content="x" * 500))
            await core.accept(ALICE.raw(30_001, ("d", f"key {number % 7}"), content=str(number)))
        await core.administration.create_mesh(ALICE.node, "lab", is_open=False)
        await core.participation.create_topic(ALICE.node, "lab", "news")
        await core.accept(ALICE.raw(1000, ("p", BOB.node), ("c", "waits"), content="hello"))
        assert isinstance(await core.locks.ask(ALICE.node, Acquire("db", 5_000)), LockGrant)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path, clock: FakeClock) -> Path:
    asyncio.run(fill(tmp_path / "relay", clock))
    keyfile.create(tmp_path / "relay" / KEY_NAME)
    return tmp_path / "relay" / "relay.db"


def spoil(path: Path, tree: str) -> None:
    """Overwrite a page of a table or an index: a leaf in its middle, or its only one."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    size = db.pragma("page_size")
    leaves = [page for (page,) in db.execute("SELECT pageno FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (tree,))]
    db.close()
    assert leaves
    with path.open("r+b") as file:
        file.seek((leaves[len(leaves) // 2] - 1) * size)
        file.write(b"\xa5" * size)


SOURCES = ["events", "journal", "members", "locks"]
DERIVED = ["event_terms", "current_events", "event_ids", "events_by_expiration", "sqlite_autoindex_members_2"]


@pytest.mark.parametrize("tree", SOURCES + DERIVED)
def test_check_and_verify_name_what_is_damaged(path: Path, tree: str) -> None:
    assert check_rules(path) == check_relay(path) == []
    spoil(path, tree)
    *findings, advice = check_rules(path)
    assert any(f" {tree} " in finding and finding.startswith("damage: ") for finding in findings)
    assert ("reindex" if tree in DERIVED else "export") in advice
    assert check_relay(path) != []


@pytest.mark.parametrize("tree", DERIVED)
def test_reindex_repairs_damaged_indexes_and_keeps_everything_else(path: Path, tree: str) -> None:
    reindex_relay(path)  # the newest events are not in the index before
    before = contents(path)
    spoil(path, tree)
    reindex_relay(path)
    assert check_relay(path) == []
    assert contents(path) == before
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("tree", SOURCES)
def test_reindex_refuses_a_damaged_table_and_leaves_the_file_alone(path: Path, tree: str) -> None:
    spoil(path, tree)
    before = path.read_bytes()
    with pytest.raises(PosthouseError) as refused:
        reindex_relay(path)
    assert refused.value.code == "store_damaged"
    assert path.read_bytes() == before


def contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of all tables."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    rows = {name: sorted(db.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr) for name in names}
    db.close()
    return rows


def remove(path: Path) -> None:
    path.unlink()


def event_ids(path: Path) -> list[str]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["event"]["id"] for line in lines if line["type"] == "event"]


async def test_sound_store_is_the_same_after_export_and_import(path: Path, tmp_path: Path, clock: FakeClock) -> None:
    exported = export_relay(path, tmp_path / "export.jsonl")
    assert (exported.events, exported.unreadable) == (2 * EVENTS + 1, [])
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    imported = await import_relay(tmp_path / "export.jsonl", other / "relay.db", clock, MarkFile(other / "mark"))
    assert (imported.events, imported.refused) == (exported.events, [])
    assert check_relay(other / "relay.db") == []
    async with engine(path.parent, clock) as old, engine(other, clock) as new:
        assert await raws(new) == await raws(old)
        for mesh in ("main", "lab"):
            assert new.meshes.find(mesh).row == old.meshes.find(mesh).row
            assert new.meshes.find(mesh).members == old.meshes.find(mesh).members
        token = await new.locks.ask(BOB.node, Acquire("db", 5_000))
        last = await old.store.last_token()
        assert isinstance(token, LockGrant) and token.token > last
        known = await new.accept((await raws(old))[0])
        assert isinstance(known, Accepted) and known.duplicate
        (message,) = (await new.query(ALICE.node, [Filter(kinds=frozenset({1000}))])).events
        state = await new.states.message(ALICE.node, json.loads(message.raw)["id"])
        assert [each["state"] for each in state["deliveries"]] == ["queued"]


async def raws(core: RelayEngine) -> list[bytes]:
    found: list[StoredEvent] = []
    cursor = None
    while True:
        page = await core.query(ALICE.node, [Filter()], cursor=cursor)
        found += page.events
        if page.is_end:
            return [each.raw for each in found]
        cursor = core.cursor(page.through_seq)


@pytest.mark.parametrize("tree", ["events", "journal", "members", "token_counter", "event_ids"])
async def test_export_saves_everything_but_the_damaged_page(
    path: Path, tmp_path: Path, clock: FakeClock, tree: str
) -> None:
    export_relay(path, tmp_path / "sound.jsonl")
    spoil(path, tree)
    exported = export_relay(path, tmp_path / "export.jsonl")
    saved, sound = event_ids(tmp_path / "export.jsonl"), event_ids(tmp_path / "sound.jsonl")
    if tree == "events":
        assert len(sound) - 20 < len(saved) < len(sound) and set(saved) < set(sound)
    else:
        assert saved == sound
    assert bool(exported.unreadable) == (tree not in ("journal", "event_ids"))  # the head is not in the journal
    remove(path)
    imported = await import_relay(tmp_path / "export.jsonl", path, clock, MarkFile(path.parent / "mark"))
    assert imported.events == len(saved)
    assert check_relay(path) == []


async def test_import_refuses_forged_events_and_says_which(path: Path, tmp_path: Path, clock: FakeClock) -> None:
    export_relay(path, tmp_path / "export.jsonl")
    text = (tmp_path / "export.jsonl").read_text().replace('"content":"xx', '"content":"xy', 1)
    (tmp_path / "forged.jsonl").write_text(text)
    remove(path)
    imported = await import_relay(tmp_path / "forged.jsonl", path, clock, MarkFile(path.parent / "mark"))
    assert imported.events == 2 * EVENTS
    assert len(imported.refused) == 1 and "seq" in imported.refused[0]
    assert check_relay(path) == []


@pytest.mark.parametrize(
    "change",
    [lambda lines: lines[1:], lambda lines: [lines[0], "nonsense"], lambda lines: [lines[0], lines[0]]],
    ids=["without header", "not JSON", "two headers"],
)
async def test_import_of_another_file_leaves_nothing_behind(
    path: Path, tmp_path: Path, clock: FakeClock, change: Callable[[list[str]], list[str]]
) -> None:
    export_relay(path, tmp_path / "export.jsonl")
    lines = change((tmp_path / "export.jsonl").read_text().splitlines())
    (tmp_path / "other.jsonl").write_text("\n".join(lines))
    remove(path)
    before = sorted(path.parent.iterdir())
    with pytest.raises(PosthouseError) as refused:
        await import_relay(tmp_path / "other.jsonl", path, clock, MarkFile(path.parent / "mark"))
    assert refused.value.code == "value_invalid"
    assert sorted(path.parent.iterdir()) == before


async def test_import_replaces_no_store_and_export_no_file(path: Path, tmp_path: Path, clock: FakeClock) -> None:
    export_relay(path, tmp_path / "export.jsonl")
    with pytest.raises(PosthouseError) as refused:
        await import_relay(tmp_path / "export.jsonl", path, clock, MarkFile(path.parent / "mark"))
    assert refused.value.code == "store_exists"
    with pytest.raises(PosthouseError) as refused:
        export_relay(path, tmp_path / "export.jsonl")
    assert refused.value.code == "backup_exists"


async def test_export_that_was_cut_off_is_imported_and_reported(path: Path, tmp_path: Path, clock: FakeClock) -> None:
    export_relay(path, tmp_path / "export.jsonl")
    lines = (tmp_path / "export.jsonl").read_text().splitlines()
    (tmp_path / "cut.jsonl").write_text("\n".join(lines[:50]))
    remove(path)
    imported = await import_relay(tmp_path / "cut.jsonl", path, clock, MarkFile(path.parent / "mark"))
    assert imported.events == 48 and "cut off" in imported.refused[0]


async def reported(edge: Edge) -> tuple[str, int, bool]:
    """Return the status of /healthz, of /readyz, and whether the metric counts damage."""
    health, ready = await edge.get("/healthz"), await edge.get("/readyz")
    metrics = edge.server.context.meters.render().decode()
    return health.value["status"], ready.status, "posthouse_relay_damaged_pages_total 0.0" not in metrics


async def test_relay_that_reads_a_damaged_page_says_so_and_serves_the_rest(path: Path, clock: FakeClock) -> None:
    spoil(path, "events")
    async with running(path.parent, clock) as edge:
        assert await reported(edge) == ("ok", 200, False)
        engine = edge.server.context.engine
        with pytest.raises(PosthouseError) as refused:
            await raws(engine)
        assert refused.value.code == "store_damaged"
        assert await reported(edge) == ("damaged", 200, True)
        assert len((await engine.query(ALICE.node, [Filter()], limit=10)).events) == 10
        assert isinstance(await engine.accept(ALICE.raw(1)), Accepted)


async def test_relay_that_cannot_write_a_damaged_page_goes_on_reading(path: Path, clock: FakeClock) -> None:
    spoil(path, "lock_requests")
    async with running(path.parent, clock) as edge:
        engine = edge.server.context.engine
        for _ in range(2):
            with pytest.raises(PosthouseError) as refused:
                await engine.locks.ask(ALICE.node, Acquire("other", 5_000, request_id="q"))
            assert refused.value.code == "store_damaged"
        assert await reported(edge) == ("damaged", 503, True)
        assert len(await raws(engine)) == 2 * EVENTS + 1


async def test_relay_does_not_start_on_a_page_that_it_needs(path: Path, clock: FakeClock) -> None:
    spoil(path, "locks")
    with pytest.raises(PosthouseError) as refused:
        async with running(path.parent, clock):
            pass
    assert refused.value.code == "store_damaged"
    assert "relay check" in str(refused.value.hint)
