"""After a reboot: bus.db may have lost its last commits, old boot times are void, and the files are still there."""

from __future__ import annotations

from pathlib import Path

from posthouse import Bus
from posthouse.bus.data_directory import endpoint_hash
from posthouse.journal.verify import verify_store
from posthouse.model.clock import system_clock
from posthouse.sqlite.connection import Durability, open_writer
from tests.bus.counters import depth_counter
from tests.bus.house import House
from tests.bus.limits import fail_until_open, reasons, reliability
from tests.bus.listening import Recorder
from tests.bus.test_journal import of_type
from tests.bus.waiting import eventually


def change(root: Path, *statements: str) -> None:
    """Change the closed store behind the back of the bus, as lost commits do."""
    db = open_writer(root / "bus.db", Durability.NORMAL)
    try:
        for statement in statements:
            db.execute(statement)
    finally:
        db.close()


async def stored(house: House, count: int = 3) -> list[str]:
    """Leave messages in a mailbox that no process has open."""
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    ids = [(await bus.publish("a.b", number, from_="c")).message_id for number in range(count)]
    await bus.close()
    return ids


def lose_rows(root: Path) -> None:
    """Lose the commits that knew of the messages, but not the files."""
    change(
        root,
        "DELETE FROM mail",
        "UPDATE endpoints SET depth = 0",
        "DELETE FROM journal WHERE type = 'bus.published'",
        "UPDATE sqlite_sequence SET seq = (SELECT coalesce(max(seq), 0) FROM journal) WHERE name = 'journal'",
        "UPDATE journal_state SET body_bytes = 0, counted_through = 0",
    )


async def test_messages_that_the_store_has_lost_are_adopted_and_handled(house: House) -> None:
    ids = await stored(house)
    lose_rows(house.root)
    house.clock.reboot()
    bus = await house.bus(reliability=reliability())
    assert depth_counter(house.root, "a.b") == 3
    assert [record.ref for record in of_type(house.root, "bus.published")] == ids
    await bus.register_endpoint("a.b")
    got = Recorder()
    await bus.subscribe("a.b", got)
    assert await got.wait(3) == [0, 1, 2]
    assert verify_store(house.root / "bus.db") == []


async def test_message_in_cur_that_the_store_has_lost_is_handled_not_removed(house: House) -> None:
    """Without the reboot a file in cur/ without a row has ended; with it, its row may have been lost."""
    ids = await stored(house)
    box = house.root / "mailboxes" / endpoint_hash("a.b")
    (box / "new" / ids[0]).rename(box / "cur" / ids[0])
    lose_rows(house.root)
    house.clock.reboot()
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    got = Recorder()
    await bus.subscribe("a.b", got)
    assert await got.wait(3) == [0, 1, 2]


async def test_file_in_cur_without_a_row_is_removed_if_the_journal_has_its_end(house: House) -> None:
    """A crash after the end was committed leaves the file; it must not be handled twice."""
    ids = await stored(house)
    box = house.root / "mailboxes" / endpoint_hash("a.b")
    copy = (box / "new" / ids[0]).read_bytes()
    bus = await house.bus(reliability=reliability())
    assert await bus.ack("a.b", ids[0]) == "acked"
    await bus.close()
    (box / "cur" / ids[0]).write_bytes(copy)
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    got = Recorder()
    await bus.subscribe("a.b", got)
    assert await got.wait(2) == [1, 2]
    await eventually(lambda: list((box / "cur").iterdir()) == [])
    assert of_type(house.root, "bus.redelivered") == []


async def test_file_in_cur_without_a_row_is_delivered_again_if_the_journal_has_no_end(house: House) -> None:
    ids = await stored(house)
    box = house.root / "mailboxes" / endpoint_hash("a.b")
    (box / "new" / ids[0]).rename(box / "cur" / ids[0])
    lose_rows(house.root)
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    got = Recorder()
    await bus.subscribe("a.b", got)
    assert await got.wait(3) == [0, 1, 2]
    redelivered = of_type(house.root, "bus.redelivered")
    assert [(record.ref, record.decoded_body()["attempt"]) for record in redelivered] == [(ids[0], 1)]


async def test_rows_whose_files_are_lost_are_released(house: House) -> None:
    ids = await stored(house)
    (house.root / "mailboxes" / endpoint_hash("a.b") / "new" / ids[1]).unlink()
    house.clock.reboot()
    bus = await house.bus(reliability=reliability())
    assert depth_counter(house.root, "a.b") == 2
    assert [envelope.id for envelope in await bus.read_inbox("a.b", 10)] == [ids[0], ids[2]]


async def test_reservation_that_was_open_at_power_loss_is_closed_or_released(house: House) -> None:
    ids = await stored(house)
    (house.root / "mailboxes" / endpoint_hash("a.b") / "new" / ids[1]).unlink()
    change(house.root, "UPDATE mail SET state = 0")
    change(house.root, "DELETE FROM journal WHERE type = 'bus.published'")
    house.clock.reboot()
    await house.bus(reliability=reliability())
    assert depth_counter(house.root, "a.b") == 2
    assert [record.ref for record in of_type(house.root, "bus.published")] == [ids[0], ids[2]]


async def test_new_ids_are_larger_than_those_of_files_the_store_has_lost(house: House) -> None:
    ids = await stored(house)
    lose_rows(house.root)
    change(house.root, "UPDATE bus_state SET last_id = NULL")
    house.clock.reboot()
    house.clock.step_wall(-3_600)
    bus = await house.bus(reliability=reliability())
    assert (await bus.publish("a.b", "later", from_="c")).message_id > max(ids)


async def test_index_that_was_ahead_of_the_store_is_rebuilt(house: House) -> None:
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    for number in range(3):
        await bus.publish("a.b", number, from_="c")
    assert (await bus.metrics()).by_status == {"new": 3}
    await bus.close()
    lose_rows(house.root)
    for path in (house.root / "mailboxes" / endpoint_hash("a.b") / "new").iterdir():
        path.unlink()
    house.clock.reboot()
    bus = await house.bus(reliability=reliability())
    fresh = [(await bus.publish("a.b", number, from_="c")).message_id for number in range(5)]
    assert [row.id for row in await bus.find_messages(status="new")] == fresh


async def test_rate_window_of_another_boot_is_void(house: House) -> None:
    limits = {"rateLimit": {"maxPerWindow": 1, "windowSecs": 3_600}}
    bus = await house.bus(reliability=limits)
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    await bus.close()
    bus = await house.bus(reliability=limits)
    assert reasons(await bus.publish("a.b", 2, from_="c")) == ["rate_limited"]
    await bus.close()
    house.clock.reboot()
    bus = await house.bus(reliability=limits)
    assert reasons(await bus.publish("a.b", 3, from_="c")) == []
    assert reasons(await bus.publish("a.b", 4, from_="c")) == ["rate_limited"]


async def test_breaker_of_another_boot_is_closed(house: House) -> None:
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", Recorder(fails=True))
    await fail_until_open(bus, "a.b")
    await bus.close()
    bus = await house.bus(reliability=reliability())
    assert reasons(await bus.publish("a.b", 1, from_="c")) == ["circuit_open"]
    assert await circuits(bus) == ["OPEN"]
    await bus.close()
    house.clock.reboot()
    bus = await house.bus(reliability=reliability())
    assert await circuits(bus) == ["CLOSED"]
    assert reasons(await bus.publish("a.b", 1, from_="c")) == []


async def circuits(bus: Bus) -> list[str]:
    return [str(view.circuit) for view in await bus.breakers()]


async def test_mailbox_that_a_process_serves_is_reconciled_by_the_next_process_that_opens_the_bus(
    house: House,
) -> None:
    """The serving process may die half way: only when all mailboxes are done the boot counts as reconciled."""
    house.clock = system_clock()  # type: ignore[assignment]
    ids = await stored(house)
    change(house.root, "UPDATE bus_state SET boot_id = 'another'")
    server = await house.agent()
    change(house.root, "UPDATE bus_state SET boot_id = 'another'")
    await server.ask("register", subject="a.b")
    await server.ask("subscribe", pattern="a.b", behaviour="hold")
    await server.wait_handled(1)
    await (await house.bus(reliability=reliability())).close()
    assert house.mailbox("a.b").cur == ids[:1], "the message of a living server stays where it is"
    await server.kill()
    await (await house.bus(reliability=reliability())).close()
    assert house.mailbox("a.b").new == ids
