"""Damaged and full stores: what is refused, what is put aside, what can be saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from posthouse.client import Published
from posthouse.daemon.directory import MeshDirectory
from posthouse.daemon.housekeeping import Pressure
from posthouse.daemon.outbox.outbox import Outbox, OutboxFilter
from posthouse.daemon.outbox.outbox_rows import Claimed, Depth, NewRow, SendOutcome
from posthouse.daemon.outbox.transitions import OUTBOX
from posthouse.daemon.recovery import damage_of, recover_outbox
from posthouse.daemon.settings import Retention
from posthouse.journal.cursor import note_committed
from posthouse.journal.store import Store
from posthouse.journal.verify import verify_store
from posthouse.keys import NodeKey
from posthouse.model.clock import FakeClock
from posthouse.model.errors import Fatal, PosthouseError, error
from posthouse.model.event import Event
from tests.client.house import House
from tests.daemon.hosts import Host, eventually, host_at, make_host, running
from tests.daemon.old_stores import make_old_store

READER = NodeKey(b"r" * 32).node
NOWHERE = "http://127.0.0.1:9"


async def filled(host: Host, count: int = 300) -> None:
    """Run a daemon and leave rows behind."""
    async with running(host):
        for number in range(count):
            assert (await host.send(READER, f"m{number} " + "x" * 500, client_message_id=f"c{number}")).status == 202


def damage(path: Path, *, at: float = 0.5, size: int = 4_096) -> None:
    """Overwrite pages in the middle of a database."""
    data = bytearray(path.read_bytes())
    start = int(len(data) * at) // 4_096 * 4_096
    data[start : start + size] = b"\xa5" * size
    path.write_bytes(bytes(data))


async def test_a_damaged_outbox_refuses_to_start_and_stays_as_it_is(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    await filled(host)
    path = host.mesh.directory.outbox
    damage(path)
    before = path.read_bytes()
    with pytest.raises(PosthouseError) as refused:
        await host.up()
    assert refused.value.code == "outbox_corrupt"
    assert isinstance(refused.value, Fatal)
    assert "daemon recover" in refused.value.hint
    assert path.read_bytes() == before
    assert not host.daemon.directory.socket.exists()


async def test_recover_saves_the_readable_rows_and_puts_the_rest_aside(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    await filled(host)
    damage(host.mesh.directory.outbox)
    recovered = recover_outbox(host.mesh.directory, host.settings.clock)
    assert recovered.aside is not None
    assert recovered.aside.exists()
    assert 100 < recovered.rows <= 300
    assert recovered.pending == recovered.rows
    async with running(host):
        assert (await host.get("/v1/health"))["queue_depth"] == recovered.rows
        again = await host.send(READER, "m0 " + "x" * 500, client_message_id="c0")
        assert again.status == 202
        assert (await host.send(READER, "another", client_message_id="c0")).status == 409


async def test_recover_of_a_sound_outbox_keeps_every_row(house: House, tmp_path: Path) -> None:
    host = make_host(tmp_path, house.url)
    async with running(host):
        await host.connected()
        await host.send(READER, "hello", client_message_id="done")
        await host.until_status("done", "done")
        await house.down()
        await host.send(READER, "hello", client_message_id="waits")
        before = (await host.get("/v1/outbox"))["items"]
    assert recover_outbox(host.mesh.directory, host.settings.clock).rows == 2
    assert damage_of(host.mesh.directory.outbox, counters=True) is None
    async with running(host):
        assert [row["id"] for row in (await host.get("/v1/outbox"))["items"]] == [row["id"] for row in before]


_OLD_OUTBOX = """
INSERT INTO outbox (position, id, client_message_id, request_fingerprint, event_id, event, destination, enqueued_at_ns,
                    status, payload_bytes)
VALUES (1, 'r1', 'c1', x'01', 'e1', x'7b7d', 'ed25519:aa', 5, 'pending', 2),
       (4, 'r4', 'c4', x'04', 'e4', x'7b7d', '#news', 6, 'dead', 2);
UPDATE outbox_state SET pending = 1, bytes = 4
"""


async def test_an_outbox_of_the_first_version_keeps_its_rows_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    make_old_store(path, OUTBOX, 1, _OLD_OUTBOX)
    outbox = Outbox(path, "main", FakeClock())
    try:
        rows = await outbox.rows(OutboxFilter(limit=10))
        assert [(row.position, row.id, row.status, row.from_agent) for row in rows] == [
            (4, "r4", "dead", ""),
            (1, "r1", "pending", ""),
        ]
        fresh = NewRow("r5", "c1", b"9", "e5", b"{}", "#news")
        taken = await outbox.accept(fresh, 10**9)
        assert taken.body["error"] == "idempotency_key_reused", "an id of the host stays taken"
        other = await outbox.accept(fresh._replace(from_agent="claude"), 10**9)
        assert other.status == 202, "an agent has its own ids"
        assert (await outbox.find("c1")).id == "r1"
        assert (await outbox.find("c1", "claude")).id == "r5"
    finally:
        outbox.close()


async def test_recover_saves_the_rows_of_an_older_outbox(tmp_path: Path) -> None:
    directory = MeshDirectory(tmp_path / "d")
    directory.prepare()
    make_old_store(directory.outbox, OUTBOX, 1, _OLD_OUTBOX)
    assert recover_outbox(directory, FakeClock())[:2] == (2, 1)


async def test_counters_that_lie_are_damage(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        await host.send(READER, "hello")
        await host.mesh.outbox.store.writer.run(
            lambda tx: tx.db.execute("UPDATE outbox_state SET pending = 7").fetchall()
        )
    with pytest.raises(PosthouseError) as refused:
        await host.up()
    assert refused.value.code == "outbox_corrupt"


async def test_a_damaged_inbox_is_put_aside_and_a_fresh_one_begins(house: House, alice: Host) -> None:
    async with host_at(house, "bob") as bob:
        for number in range(60):
            await alice.send(bob.node, f"m{number} " + "x" * 500)
        await bob.until_bodies(60)
        await bob.down()
        path = bob.mesh.directory.inbox
        damage(path)
        await bob.up()
        assert list(path.parent.glob("inbox.db.corrupt-*"))
        assert await bob.bodies() == []
        await alice.send(bob.node, "afterwards")
        assert await bob.until_bodies(1) == ["afterwards"]


async def test_a_file_that_is_no_database_is_damage(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE)
    async with running(host):
        pass
    host.mesh.directory.outbox.write_bytes(b"not a database at all" * 500)
    with pytest.raises(PosthouseError) as refused:
        await host.up()
    assert refused.value.code == "outbox_corrupt"


# room


async def test_a_full_outbox_refuses_new_messages_with_507_and_answers_old_ones(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE, outbox_max_bytes=10_000)
    async with running(host):
        listener = host.daemon.events.subscribe(100)
        statuses = []
        for number in range(30):
            answer = await host.send(READER, "x" * 500, client_message_id=f"c{number}")
            statuses.append(answer.status)
            if answer.status == 507:
                break
        assert statuses[-1] == 507
        assert answer["error"] == "insufficient_storage"
        assert answer["client_message_id"] == f"c{len(statuses) - 1}"
        depth = await host.mesh.outbox.depth()
        assert 0.8 * 10_000 < depth.bytes <= 0.95 * 10_000
        assert (await host.send(READER, "x" * 500, client_message_id="c0")).status == 202
        host.mesh.pressure.update(depth)
        events = [each for each in await listener.next_batch(5) if each.event == "outbox_pressure"]
        assert events[0].data["is_high"] is True
        assert (await host.row(f"c{len(statuses) - 1}")).get("error") == "outbox_row_unknown"


async def test_sending_makes_no_room_but_stripping_does(house: House, tmp_path: Path) -> None:
    async with host_at(house, "a", outbox_max_bytes=2_000) as host:
        while (answer := await host.send(READER, "x" * 300)).status == 202:
            pass
        assert answer.status == 507
        for row in (await host.get("/v1/outbox"))["items"]:
            await host.until_status(row["id"], "done")
        await host.mesh.outbox.strip_done(host.daemon.clock.wall_ns() + 1)
        assert (await host.send(READER, "x" * 300)).status == 202


def test_pressure_includes_the_free_space_of_the_disk(tmp_path: Path) -> None:
    free = 1_000
    events: list[tuple[int, int, bool]] = []
    pressure = Pressure(10_000, tmp_path, lambda _path: free)
    pressure.on_change = lambda *given: events.append(given)
    pressure.update(Depth(1, 0, 100))
    assert pressure.capacity_bytes == 1_100
    pressure.update(Depth(1, 0, 3_999))
    assert events == []
    pressure.update(Depth(1, 0, 4_000))
    pressure.update(Depth(1, 0, 4_100))
    assert events == [(4_000, 5_000, True)]
    free = 100_000
    pressure.update(Depth(1, 0, 4_000))
    assert events[1] == (4_000, 10_000, False)
    assert pressure.capacity_bytes == 10_000


async def test_a_settled_frame_is_written_however_long_the_store_is_full(house: House, alice: Host) -> None:

    settle = alice.mesh.outbox.settle
    failures = 2

    async def fail_twice(results: Sequence[SendOutcome], destination: str, limit: int) -> list[Claimed]:
        nonlocal failures
        if failures:
            failures -= 1
            raise error("store_full", reason="for the test")
        return await settle(results, destination, limit)

    frames: list[int] = []
    submit = alice.mesh.drain._submit

    async def count(events: Sequence[Event]) -> list[Published | PosthouseError]:
        frames.append(len(events))
        return await submit(events)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posthouse.daemon.drain._STORE_AGAIN_S", 0.01)
        patch.setattr(alice.mesh.outbox, "settle", fail_twice)
        patch.setattr(alice.mesh.drain, "_submit", count)
        await alice.send(READER, "hello", client_message_id="c")
        await alice.until_status("c", "done")
    assert frames == [1]


# journals


async def test_old_records_go_below_a_snapshot_and_rows_stay(tmp_path: Path) -> None:
    clock = FakeClock()
    host = make_host(tmp_path, NOWHERE, clock=clock)
    async with running(host):
        for number in range(600):
            await host.send(READER, "x", client_message_id=f"c{number}")
        clock.advance(31 * 86_400)
        store = host.mesh.outbox.store
        before = store.extent()
        await host.mesh.housekeeper.sweep()
        after = store.extent()
        assert after.epoch == before.epoch
        assert await count_records(store, "journal.snapshot") == 1
        assert await count_records(store, "outbox.queued") <= 100
        assert await count_records(store, "outbox.dead") > 0
        assert (await host.row("c0"))["status"] == "dead"
    assert verify_store(host.mesh.directory.outbox) == []


async def test_with_a_lake_only_records_that_it_has_committed_are_pruned(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    host = make_host(tmp_path, NOWHERE, retention=Retention(keep_days=0, lake=str(lake)))
    async with running(host):
        for number in range(600):
            await host.send(READER, "x", client_message_id=f"c{number}")
        await host.mesh.housekeeper.sweep()
        store = host.mesh.outbox.store
        assert await count_records(store, "outbox.queued") == 600
        note_committed(lake, store.epoch, 500)
        host.mesh.uplink.clock_watch.confirm()
        await host.mesh.housekeeper.sweep()
        assert store.extent().pruned_through == 500


async def test_a_journal_that_is_too_large_is_pruned_before_its_age(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE, retention=Retention(max_bytes=10_000))
    async with running(host):
        for number in range(600):
            await host.send(READER, "x", client_message_id=f"c{number}")
        await host.mesh.housekeeper.sweep()
        assert await count_records(host.mesh.outbox.store, "outbox.queued") == 0
        assert (await host.get("/v1/health"))["queue_depth"] == 600


async def count_records(store: Store, kind: str) -> int:
    found = await store.pool.run(lambda db: db.execute("SELECT count(*) FROM journal WHERE type = ?", (kind,)).get)
    return int(str(found))


async def test_pressure_is_recorded_once(tmp_path: Path) -> None:
    host = make_host(tmp_path, NOWHERE, outbox_max_bytes=5_000)
    async with running(host):
        while (await host.send(READER, "x" * 300)).status == 202:
            pass
        await host.mesh.housekeeper.measure()  # or the daemon's own measurement, whose record may not be written yet
        store = host.mesh.outbox.store
        await eventually(lambda: count_records(store, "outbox.pressure"), lambda count: count > 0)
        await host.mesh.housekeeper.measure()
        assert await count_records(store, "outbox.pressure") == 1


async def test_a_body_the_relay_would_not_take_is_refused_before_anything_is_written(house: House, alice: Host) -> None:
    alice.mesh.sending.max_payload = 10
    answer = await alice.send(READER, "x" * 11, client_message_id="c")
    assert (answer.status, answer["error"], answer["limit"]) == (413, "body_too_large", 10)
    assert (await alice.get("/v1/outbox"))["items"] == []
