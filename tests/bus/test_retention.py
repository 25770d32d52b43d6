"""How long the journal of a bus lasts: by age, by size, as the operator has set it; and what pruning must not lose."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from posthouse import Bus
from posthouse.bus.options import Retention, journal_retention
from posthouse.journal.cursor import note_committed
from posthouse.journal.read import read_extent
from posthouse.journal.verify import verify_store
from posthouse.model.errors import PosthouseError
from posthouse.sqlite.connection import open_reader
from tests.bus.house import House
from tests.bus.limits import reliability
from tests.bus.listening import Recorder
from tests.bus.test_journal import of_type, records
from tests.bus.waiting import bounded, eventually

_DAY_S = 86_400


async def open_bus(house: House, **retention: int | str) -> Bus:
    limits = reliability(backpressure={"maxMailboxSize": 1_000_000})
    return await house.bus(reliability=limits, retention=Retention(**retention))  # type: ignore[arg-type]


async def publish(bus: Bus, count: int, size: int = 10) -> list[str]:
    return [(await bus.publish("a.b", "x" * size, from_="c")).message_id for _ in range(count)]


async def prune(bus: Bus) -> None:
    await bus.session.housekeeping.prune()


def body_bytes(root: Path) -> int:
    db = open_reader(root / "bus.db")
    try:
        count: int = db.execute("SELECT sum(octet_length(body)) FROM journal").get
        return count
    finally:
        db.close()


def read_epoch(root: Path) -> str:
    db = open_reader(root / "bus.db")
    try:
        return read_extent(db).epoch
    finally:
        db.close()


async def test_records_go_when_they_are_older_than_kept_and_a_snapshot_stands_for_them(house: House) -> None:
    bus = await open_bus(house, keep_days=30)
    await bus.register_endpoint("a.b")
    old = await publish(bus, 20)
    house.clock.advance(20 * _DAY_S)
    young = await publish(bus, 5)
    await prune(bus)
    assert [record.ref for record in of_type(house.root, "bus.published")] == old + young
    house.clock.advance(11 * _DAY_S)
    await prune(bus)
    assert [record.ref for record in of_type(house.root, "bus.published")] == young
    (snapshot,) = of_type(house.root, "journal.snapshot")
    assert snapshot.decoded_body()["state"] == {"depths": {"a.b": 25}}
    assert verify_store(house.root / "bus.db") == []


async def test_quiet_bus_is_not_pruned_record_by_record(house: House) -> None:
    """Each pruning costs a snapshot: what ages within a day goes together."""
    bus = await open_bus(house, keep_days=1)
    await bus.register_endpoint("a.b")
    for _ in range(48):
        await publish(bus, 1)
        await prune(bus)
        house.clock.advance(_DAY_S / 24)
    assert len(of_type(house.root, "journal.snapshot")) <= 2
    assert len(of_type(house.root, "bus.published")) < 48


async def test_journal_above_its_size_loses_the_oldest_until_it_fits(house: House) -> None:
    bus = await open_bus(house, max_bytes=400_000)
    await bus.register_endpoint("a.b")
    ids = await publish(bus, 1_500, size=100)
    assert body_bytes(house.root) > 500_000
    await prune(bus)
    assert 0 < body_bytes(house.root) <= 400_000
    left = [record.ref for record in of_type(house.root, "bus.published")]
    assert left == ids[-len(left) :]
    assert verify_store(house.root / "bus.db") == []


async def test_few_large_records_are_pruned_too(house: House) -> None:
    bus = await open_bus(house, max_bytes=300_000)
    await bus.register_endpoint("a.b")
    ids = await publish(bus, 10, size=100_000)
    await prune(bus)
    assert body_bytes(house.root) <= 300_000
    assert [record.ref for record in of_type(house.root, "bus.published")] == ids[-2:]


@pytest.mark.parametrize("endpoints", [0, 1, 200])
async def test_pruning_ends_when_the_snapshot_alone_is_above_the_size(house: House, endpoints: int) -> None:
    bus = await open_bus(house, max_bytes=1)
    await bus.publish("no.where", 1, from_="c")
    for number in range(endpoints):
        await bus.register_endpoint(f"a.endpoint-with-a-long-name-{number}")
    await asyncio.wait_for(prune(bus), 10)
    before = body_bytes(house.root)
    await asyncio.wait_for(prune(bus), 10)
    assert body_bytes(house.root) == before
    assert records(house.root)


async def test_bus_with_many_endpoints_gets_smaller_by_pruning(house: House) -> None:
    bus = await open_bus(house, max_bytes=150_000)
    for number in range(1_000):
        await bus.register_endpoint(f"a.endpoint-{number}")
    await bus.register_endpoint("a.b")
    for _ in range(4):
        await publish(bus, 1_000)
        house.clock.advance(60)
        await prune(bus)
    assert body_bytes(house.root) < 1_000_000


async def test_waiting_message_whose_record_was_pruned_is_delivered_and_indexed(house: House) -> None:
    bus = await open_bus(house, keep_days=30)
    await bus.register_endpoint("a.b")
    waiting = Bus(house.root, default_ttl_ms=90 * _DAY_S * 1_000, clock=house.clock)
    async with waiting:
        message_id = (await waiting.publish("a.b", "patient", from_="c")).message_id
    house.clock.advance(40 * _DAY_S)
    await prune(bus)
    assert message_id not in [record.ref for record in records(house.root)]
    assert [row.id for row in await bus.find_messages(status="new")] == [message_id]
    got = Recorder()
    await bus.subscribe("a.b", got)
    assert await got.wait(1) == ["patient"]
    await eventually(lambda: [record.ref for record in of_type(house.root, "bus.handled")] == [message_id])
    assert (await bus.metrics()).by_status == {"done": 1}


async def test_tap_from_a_pruned_cursor_gets_the_oldest_position(house: House) -> None:
    bus = await open_bus(house, keep_days=30)
    await bus.register_endpoint("a.b")
    tap = await bus.tap(">", Recorder())
    cursor = tap.cursor
    await tap()
    await publish(bus, 10)
    house.clock.advance(31 * _DAY_S)
    (kept,) = await publish(bus, 1)
    await prune(bus)
    with pytest.raises(PosthouseError) as raised:
        await bus.tap(">", Recorder(), after=cursor)
    assert raised.value.code == "cursor_pruned"
    assert raised.value.fields["oldest_seq"] == records(house.root)[0].seq
    tapped = Recorder()
    await bus.tap(">", tapped, after=raised.value.fields["cursor"])
    await tapped.wait(1)
    assert tapped.ids == [kept]


async def test_running_tap_that_was_overtaken_by_pruning_says_so(house: House) -> None:
    bus = await open_bus(house, keep_days=30)
    await bus.register_endpoint("a.b")
    seen: list[str] = []
    entered, may_go_on = Recorder(), asyncio.Event()

    async def slow(envelope: object) -> None:
        seen.append(getattr(envelope, "id", ""))
        await entered(envelope)  # type: ignore[arg-type]
        await bounded(may_go_on)

    await bus.tap(">", slow)
    first = await publish(bus, 1)
    await entered.wait(1)
    await publish(bus, 20)
    house.clock.advance(31 * _DAY_S)
    last = await publish(bus, 1)
    await prune(bus)
    with capture_logs() as entries:
        may_go_on.set()
        await eventually(lambda: seen[-1] == last[0])
    assert seen[0] == first[0]
    missed = [entry for entry in entries if entry["event"] == "onlooker_missed_pruned_records"]
    assert [entry["oldest_seq"] for entry in missed] == [records(house.root)[0].seq]


async def test_with_a_lake_only_committed_records_are_pruned(house: House) -> None:
    bus = await open_bus(house, keep_days=1, max_bytes=1, lake="/somewhere/lake")
    await bus.register_endpoint("a.b")
    ids = await publish(bus, 10)
    house.clock.advance(40 * _DAY_S)
    await prune(bus)
    assert [record.ref for record in of_type(house.root, "bus.published")] == ids


async def test_what_the_lake_has_committed_of_this_epoch_is_pruned(house: House, tmp_path: Path) -> None:
    bus = await open_bus(house, keep_days=1, lake=str(tmp_path / "lake"))
    await bus.register_endpoint("a.b")
    ids = await publish(bus, 10)
    fourth = next(record.seq for record in of_type(house.root, "bus.published") if record.ref == ids[3])
    house.clock.advance(40 * _DAY_S)
    note_committed(tmp_path / "lake", "0" * 32, 1_000)
    await prune(bus)
    assert [record.ref for record in of_type(house.root, "bus.published")] == ids
    note_committed(tmp_path / "lake", read_epoch(house.root), fourth)
    await prune(bus)
    assert [record.ref for record in of_type(house.root, "bus.published")] == ids[4:]
    assert verify_store(house.root / "bus.db") == []


async def test_bus_that_is_opened_for_a_moment_prunes_a_little(house: House) -> None:
    bus = await open_bus(house, keep_days=30)
    await bus.register_endpoint("a.b")
    await publish(bus, 10)
    await bus.close()
    house.clock.advance(31 * _DAY_S)
    await open_bus(house, keep_days=30)
    assert of_type(house.root, "bus.published") == []


async def test_settings_of_the_user_decide_unless_the_program_does(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    ids = await publish(bus, 10)
    house.clock.advance(10 * _DAY_S)
    await prune(bus)
    assert len(of_type(house.root, "bus.published")) == 10
    (tmp_path / "home" / "config.toml").write_text("[journal]\nkeep_days = 'many'\n")
    with capture_logs() as entries:
        await prune(bus)
    assert [entry["event"] for entry in entries] == ["journal_not_pruned"]
    (tmp_path / "home" / "config.toml").write_text("[journal]\nkeep_days = 7\n")
    await prune(bus)
    assert [record.ref for record in of_type(house.root, "bus.published")] == []
    assert len(ids) == 10


def test_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[journal]\nkeep_days = 7\nlake = '/lake'\n[relay]\nqueue_max = 5\n")
    environ = {"POSTHOUSE_HOME": str(tmp_path), "POSTHOUSE_JOURNAL_KEEP_DAYS": "3"}
    assert journal_retention(environ) == Retention(keep_days=3, lake="/lake")
    assert journal_retention({"POSTHOUSE_HOME": str(tmp_path / "none")}) == Retention()
