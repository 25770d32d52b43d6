from __future__ import annotations

from functools import partial
from typing import Any

from posthouse import Bus
from posthouse.model.budget import GivenBudget
from posthouse.model.envelope import Envelope
from tests.bus.counters import depth_counter
from tests.bus.house import House
from tests.bus.limits import reliability, settled
from tests.bus.listening import Recorder
from tests.bus.waiting import eventually

OPEN = ("new", "cur", "dlq")


async def rows(bus: Bus, **query: Any) -> list[Any]:
    return list(await bus.find_messages(**query))


async def open_rows(bus: Bus) -> list[tuple[Any, ...]]:
    """Everything the index says about mail that still lies somewhere."""
    return sorted(
        (row.id, row.endpoint_hash, row.subject, row.sender, str(row.status), row.created_at, row.expires_at)
        for row in await rows(bus)
        if str(row.status) in OPEN
    )


async def busy(house: House) -> Bus:
    """A bus with mail in every state."""
    bus = await house.bus(reliability=reliability())
    for subject in ("a.new", "a.cur", "a.done", "a.dlq", "p.>"):
        await bus.register_endpoint(subject)
    held, failing, got = Recorder(holds=True), Recorder(fails=True), Recorder()
    for subject, handler in (("a.cur", held), ("a.dlq", failing), ("a.done", got)):
        await bus.subscribe(subject, handler)
    for number in range(3):
        for subject in ("a.new", "a.cur", "a.done", "a.dlq", "p.x.y"):
            await bus.publish(subject, number, from_=f"sender.n{number}")
    await bus.publish("a.new", 1, from_="c", budget=GivenBudget(ttl=1))
    await bus.publish("no.where", 1, from_="c")
    await bus.publish("a.new", "fan", from_="c", reply_to="c.x")
    await held.wait(1)
    await got.wait(3)
    await settled(bus, "a.dlq")
    await settled(bus, "a.done")
    return bus


async def test_rebuilt_index_equals_the_live_one(house: House) -> None:
    bus = await busy(house)
    before = await eventually_stable(bus)
    assert {row[4] for row in before} == set(OPEN)
    await bus.rebuild_index()
    assert await open_rows(bus) == before


async def eventually_stable(bus: Bus) -> list[tuple[Any, ...]]:
    """The index lags at most a moment: read until two readings agree."""
    previous = await open_rows(bus)
    for _ in range(500):
        current = await open_rows(bus)
        if current == previous and len(current) == 3 + 3 + 3 + 3 + 1 + 1 + 1:
            return current
        previous = current
    raise AssertionError(f"the index never settled: {len(previous)} rows, {previous}")


async def test_lost_index_is_rebuilt_from_the_files(house: House) -> None:
    bus = await busy(house)
    before = await eventually_stable(bus)
    await bus.close()
    for path in house.root.glob("index.db*"):
        path.unlink()
    again = await house.bus()
    await again.rebuild_index()
    found = await open_rows(again)
    assert [row[:4] for row in found] == [row[:4] for row in before]


async def test_index_of_garbage_is_replaced(house: House) -> None:
    bus = await busy(house)
    await bus.close()
    for path in house.root.glob("index.db*"):
        path.unlink()
    (house.root / "index.db").write_bytes(b"this is no database" * 100)
    (house.root / "index.db").chmod(0o600)
    again = await house.bus()
    await again.rebuild_index()
    assert len(await open_rows(again)) == 15


async def test_index_is_queried_by_subject_endpoint_and_status(house: House) -> None:
    bus = await busy(house)
    await eventually_stable(bus)
    assert {row.subject for row in await rows(bus, subject="a.new")} == {"a.new"}
    assert len(await rows(bus, endpoint="p.>")) == 3
    assert {str(row.status) for row in await rows(bus, status="dlq")} == {"dlq"}
    assert len(await rows(bus, status="cur")) == 1


async def test_row_tells_when_its_message_expires(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c.d")
    (row,) = await rows(bus, subject="a.b")
    now_ms = house.clock.wall_ns() // 1_000_000
    assert (row.sender, str(row.status), row.expires_at) == ("c.d", "new", now_ms + 7 * 86_400_000)


async def test_done_rows_are_kept_for_a_day(house: House, bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    await bus.publish("a.b", 1, from_="c")
    await got.wait(1)
    await settled(bus, "a.b")
    for _ in range(500):
        if [str(row.status) for row in await rows(bus)] == ["done"]:
            break
    assert [str(row.status) for row in await rows(bus)] == ["done"]
    await bus.sweep()
    assert len(await rows(bus)) == 1
    house.clock.advance(86_401)
    await bus.sweep()
    assert await rows(bus) == []


async def test_rebuild_copes_with_corrupt_and_stray_files(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    new = house.mailbox("a.b").path / "new"
    (new / "01ARZ3NDEKTSV4RRFFQ69G5FAV").write_text("{")
    (new / "stray").mkdir()
    (house.root / "mailboxes" / "not-a-mailbox").mkdir(mode=0o700)
    await bus.rebuild_index()
    assert [row.sender for row in await rows(bus, status="new")] == ["c"]


async def test_rebuild_counts_every_mailbox_on_disk(house: House) -> None:
    bus = await busy(house)
    await bus.rebuild_index()
    assert len(await open_rows(bus)) == 15


def has_right_depth(house: House, subject: str) -> bool:
    return depth_counter(house.root, subject) == house.mailbox(subject).depth


async def test_depths_equal_the_files_after_everything(house: House) -> None:
    await busy(house)
    for subject in ("a.new", "a.cur", "a.done", "a.dlq", "p.>"):
        await eventually(partial(has_right_depth, house, subject))


async def test_metrics_count_messages_by_status_and_subject(house: House) -> None:
    bus = await busy(house)
    await eventually_stable(bus)
    metrics = await bus.metrics()
    assert metrics.by_status["dlq"] == 5
    assert metrics.by_status["done"] == 3
    assert metrics.by_status["cur"] == 1
    assert metrics.by_subject["a.new"] == 5
    assert metrics.total_messages == sum(metrics.by_status.values())


async def test_metrics_of_an_empty_bus_are_zero(bus: Bus) -> None:
    metrics = await bus.metrics()
    assert metrics.total_messages == 0
    assert sum(metrics.by_status.values()) == 0
    assert dict(metrics.by_subject) == {}


async def test_handled_message_is_done_in_the_index(bus: Bus) -> None:
    done = []

    async def handler(envelope: Envelope) -> None:
        done.append(envelope.id)

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", handler)
    await bus.publish("a.b", 1, from_="c")
    await eventually(lambda: done)
    await settled(bus, "a.b")
