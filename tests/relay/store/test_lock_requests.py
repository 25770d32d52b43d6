"""A retry gets the grant of its request id although the id is written later, after any interruption."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import REQUEST_RECORD_S
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite.lock_requests import RECORDS_BEHIND, UNWRITTEN_REQUESTS
from posthouse.relay.store.sqlite.store import FILE_NAME
from posthouse.sqlite.connection import Durability, open_reader, open_writer
from tests.relay.authors import ALICE
from tests.relay.locks.desk import Desk, code_of, open_desk

MAX_PAGES_OF_A_PAIR = 10


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def desk(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Desk]:
    async with open_desk(tmp_path / "relay", clock) as opened:
        yield opened


@pytest.fixture
def db(tmp_path: Path, desk: Desk) -> Iterator[apsw.Connection]:
    connection = open_reader(tmp_path / "relay" / FILE_NAME)
    yield connection
    connection.close()


def written(db: apsw.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT request_id FROM lock_requests ORDER BY request_seq")]


def kill(desk_folder: Path) -> Path:
    """Return a copy of the files of a relay that runs, as a kill would leave them."""
    killed = desk_folder.with_name("killed")
    shutil.copytree(desk_folder, killed, ignore=shutil.ignore_patterns("*-shm"))
    return killed


async def pair(desk: Desk, name: str) -> None:
    token = await desk.granted(ALICE.node, request_id=name, wait_ms=1_000)
    await desk.release(ALICE.node, token)


REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "session": {"session": "s"},
    "shared": {"mode": "shared"},
    "tree": {"tree": True},
    "several": {"also": ("and/this", "and/that"), "session": "s"},
    "waiting": {"wait_ms": 1_000, "lease_ms": 60_000},
}


async def test_every_form_of_request_is_known_after_a_kill(
    desk: Desk, db: apsw.Connection, tmp_path: Path, clock: FakeClock
) -> None:
    asked = {name: {"request_id": "q", "resource": name} | more for name, more in REQUESTS.items()}
    granted = {name: await desk.acquire(ALICE.node, **request) for name, request in asked.items()}
    assert written(db) == []
    clock.advance(1)
    async with open_desk(kill(tmp_path / "relay"), clock) as again:
        for name, request in asked.items():
            assert await again.acquire(ALICE.node, **request) == granted[name]
            other = request | {"lease_ms": 7_000}
            assert code_of(await again.acquire(ALICE.node, **other)) == "request_reused"
        other = asked["several"] | {"also": ("and/that", "and/this")}
        assert code_of(await again.acquire(ALICE.node, **other)) == "request_reused"


async def test_taken_over_lock_keeps_the_request_id_of_its_new_holder(
    desk: Desk, tmp_path: Path, clock: FakeClock
) -> None:
    await desk.acquire(ALICE.node, request_id="first", session="a")
    clock.advance(6)
    second = await desk.acquire(ALICE.node, request_id="second", session="b")
    async with open_desk(kill(tmp_path / "relay"), clock) as again:
        assert await again.acquire(ALICE.node, request_id="second", session="b") == second
        assert code_of(await again.acquire(ALICE.node, request_id="first", session="a")) == "request_spent"


async def test_request_ids_are_written_in_bulk(desk: Desk, db: apsw.Connection) -> None:
    for number in range(UNWRITTEN_REQUESTS):
        await pair(desk, f"q{number}")
    assert written(db) == []
    await pair(desk, "next")
    assert written(db) == [f"q{number}" for number in range(UNWRITTEN_REQUESTS)]
    for name in ("q0", "next"):
        assert code_of(await desk.acquire(ALICE.node, request_id=name)) == "request_spent"


async def test_table_is_never_far_behind_the_journal(desk: Desk, db: apsw.Connection) -> None:
    await pair(desk, "q")
    await desk.core.store.submit(
        lambda unit: [unit.append("config.changed", ref="nothing") for _ in range(RECORDS_BEHIND)]
    )
    await desk.inspect()
    assert written(db) == ["q"]


async def test_unit_that_fails_takes_no_request_id_of_others_along(desk: Desk, clock: FakeClock) -> None:
    kept = await desk.acquire(ALICE.node, request_id="kept")

    def fail(unit: Unit) -> None:
        unit.append("config.changed", ref="nothing")
        raise error("held")

    failed = desk.core.store.submit(fail)
    later = desk.acquire(ALICE.node, "other", request_id="later")
    with pytest.raises(PosthouseError, match="held"):
        await failed
    clock.advance(1)
    assert await desk.acquire(ALICE.node, request_id="kept") == kept
    assert await desk.acquire(ALICE.node, "other", request_id="later") == await later


async def test_pruned_records_leave_their_request_ids(
    desk: Desk, db: apsw.Connection, tmp_path: Path, clock: FakeClock
) -> None:
    granted = await desk.acquire(ALICE.node, request_id="q", lease_ms=600_000)
    store = desk.core.store
    head = (await store.extent()).head
    snapshot = await store.submit(lambda unit: unit.snapshot_journal(head))
    await store.submit(lambda unit: unit.prune(head, snapshot, None))
    assert written(db) == ["q"]
    async with open_desk(kill(tmp_path / "relay"), clock) as again:
        assert await again.acquire(ALICE.node, request_id="q", lease_ms=600_000) == granted


async def test_request_ids_of_the_day_before_leave_the_table(desk: Desk, db: apsw.Connection, clock: FakeClock) -> None:
    await pair(desk, "old")
    clock.advance(REQUEST_RECORD_S + 1)
    for number in range(UNWRITTEN_REQUESTS):
        await pair(desk, f"q{number}")
    assert "q0" in written(db) and "old" not in written(db)


async def test_lock_and_unlock_change_few_pages(desk: Desk, tmp_path: Path) -> None:
    def frames() -> int:
        with closing(open_writer(tmp_path / "relay" / FILE_NAME, Durability.FULL)) as db:
            return db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]

    count = 2 * UNWRITTEN_REQUESTS
    await pair(desk, "first")
    before = frames()
    for number in range(count):
        await pair(desk, f"{number:026}")
    assert count < frames() - before <= count * MAX_PAGES_OF_A_PAIR
