"""Replaying the journal from its last snapshot gives exactly the table of locks."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.journal.digest import digest_records
from posthouse.model.api import ArchivedRange
from posthouse.model.clock import FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.lease import LockRow
from posthouse.model.lease_table import LeaseTable
from posthouse.relay.ops.housekeeping import Pruning
from posthouse.relay.ops.maintenance import check_locks, check_token_counter, replay_store_locks
from posthouse.relay.store.sqlite.meshes_and_locks import all_locks, last_token
from posthouse.relay.wire.lock_operations import Break
from posthouse.sqlite.connection import Durability, open_reader, open_writer
from tests.relay.locks.desk import Desk, node, open_desk

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "acquire",
                "tree",
                "share",
                "set",
                "wait",
                "renew",
                "release",
                "break",
                "pass",
                "restart",
                "reboot",
                "prune",
            ]
        ),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=25,
)


async def prune(desk: Desk) -> None:
    """Prune everything but the newest record."""
    store = desk.core.store
    extent = await store.extent()
    first, last = extent.pruned_through + 1, extent.head - 1
    if first <= last:
        records = [record for record in await store.journal(first - 1, 10_000) if record.seq <= last]
        await Pruning(store).prune(ArchivedRange(store.epoch, first, last, digest_records(records), None))


async def step(desk: Desk, op: str, owner: str, resource: str) -> None:
    if op == "acquire":
        await desk.acquire(owner, resource, request_id=f"{owner[-4:]} {desk.clock.boot_ns()}")
    elif op == "tree":
        await desk.acquire(owner, resource.partition("/")[0], tree=True, session="tree")
    elif op == "share":
        await desk.acquire(owner, resource, mode="shared", session=f"{desk.clock.boot_ns()}")
    elif op == "set":
        await desk.acquire(owner, resource, also=("r/0", "s") if resource not in ("r/0", "s") else ())
    elif op == "break":
        await desk.locks.ask(node(99), Break(resource))
    elif op == "wait":
        desk.acquire(owner, resource, wait_ms=600_000)
    elif op == "pass":
        desk.clock.advance(2.5)
    elif op == "prune":
        await prune(desk)
    else:
        state = await desk.inspect(resource)
        token = max(1, state.holders[-1].token if state.holders else state.token)
        await (desk.renew if op == "renew" else desk.release)(owner, token, resource)


async def live(folder: Path, steps: list[tuple[str, int, int]]) -> None:
    clock = FakeClock()
    parts: list[list[tuple[str, int, int]]] = [[]]
    for each in steps:
        parts[-1].append(each)
        if each[0] in ("restart", "reboot"):
            parts.append([])
    for part in parts:
        async with open_desk(folder, clock) as desk:
            for op, owner, resource in part:
                if op not in ("restart", "reboot"):
                    await step(desk, op, node(owner + 1), ("r", "r/0", "r/1")[resource])
            await desk.inspect()
        if part and part[-1][0] == "reboot":
            clock.reboot()


def _place(row: LockRow) -> tuple[str, str, str]:
    return row.resource, row.owner, row.session


@pytest.mark.sqlite
@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_replayed_journal_gives_the_table(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder), steps))
        db = open_reader(Path(folder) / "relay.db")
        rows = [entry.row for entry in all_locks(db)]
        replayed = replay_store_locks(db).get("main", LeaseTable())
        assert sorted(replayed, key=_place) == sorted(rows, key=_place)
        assert list(check_locks(db)) == list(check_token_counter(db)) == []
        assert last_token(db) >= max((row.token for row in rows), default=0)
        db.close()


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE locks SET token = token + 1",
        "UPDATE locks SET owner = 'ed25519:0'",
        "UPDATE locks SET is_released = 1",
        "UPDATE locks SET deadline_boot_ns = deadline_boot_ns + 1",
        "DELETE FROM locks",
        "UPDATE token_counter SET token = 0",
    ],
)
async def test_check_finds_a_table_that_differs_from_its_journal(tmp_path: Path, damage: str) -> None:
    async with open_desk(tmp_path) as desk:
        await desk.granted(node(1))
    db = open_writer(tmp_path / "relay.db", Durability.FULL)
    assert list(check_locks(db)) == list(check_token_counter(db)) == []
    db.execute(damage)
    findings = (*check_locks(db), *check_token_counter(db))
    assert findings and all("the journal says" in finding for finding in findings)
    db.close()


async def test_records_hold_each_decision_and_its_time(desk: Desk) -> None:
    alice, bob = node(1), node(2)
    await desk.granted(alice, request_id="q1")
    desk.clock.advance(1)
    await desk.renew(alice, 1, lease_ms=2_000)
    desk.clock.advance(2)
    await desk.granted(bob)
    waiting = desk.acquire(alice, wait_ms=60_000)
    await desk.inspect()
    desk.clock.advance(1.5)
    await desk.release(bob, 2)
    await waiting
    found = [(record.type, record.actor, record.decoded_body()) for record in await _locks(desk)]
    assert [(kind, actor) for kind, actor, _ in found] == [
        ("lock.acquired", alice),
        ("lock.renewed", alice),
        ("lock.taken_over", bob),
        ("lock.released", bob),
        ("lock.acquired", alice),
    ]
    acquired, renewed, taken, released, waited = (body for _, _, body in found)
    assert acquired["request_id"] == "q1" and "wait_ms" not in acquired
    assert (renewed["token"], renewed["lease_ms"]) == (1, 2_000)
    assert renewed["deadline_boot_ns"] - renewed["granted_boot_ns"] == 2_000 * 10**6
    assert (taken["former_owner"], taken["former_token"]) == (alice, 1)
    assert taken["former_deadline_boot_ns"] <= taken["granted_boot_ns"]
    assert (released["token"], waited["token"], waited["wait_ms"]) == (2, 3, 1_500)
    assert {body["run_id"] for _, _, body in found} == {desk.locks.run_id}


async def test_denials_write_no_record(desk: Desk) -> None:
    await desk.granted(node(1))
    before = (await desk.core.store.extent()).head
    for _ in range(10):
        await desk.acquire(node(2))
        await desk.release(node(2), 1)
    assert (await desk.core.store.extent()).head == before


@pytest.mark.sqlite
async def test_lock_and_record_are_written_together_or_not_at_all(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.granted(node(1))
    before = (await desk.core.store.extent()).head

    def fail(*_: Any, **__: Any) -> None:
        raise apsw.ConstraintError("planted")

    with monkeypatch.context() as patch:
        patch.setattr("posthouse.relay.store.sqlite.store.SqliteUnit.append", fail)
        with pytest.raises((apsw.Error, PosthouseError)):
            await desk.release(node(1), 1)
    assert (await desk.inspect()).held and (await desk.core.store.extent()).head == before


async def test_feed_of_locks_shows_typed_columns(desk: Desk) -> None:
    await desk.granted(node(1), "a/b")
    columns, rows = await desk.core.store.feed("locks", 0, 10)
    shown = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [row["type"] for row in shown] == ["lock.run_started", "lock.acquired"]
    assert (shown[1]["resource"], shown[1]["token"], shown[1]["owner"]) == ("a/b", 1, node(1))


async def _locks(desk: Desk) -> list[Any]:
    types = ["lock.acquired", "lock.renewed", "lock.released", "lock.taken_over"]
    return await desk.core.store.journal(0, 1_000, types)
