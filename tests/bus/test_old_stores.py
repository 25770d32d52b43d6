"""A bus.db of an older version opens with its mail, its servers and its dead letters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import apsw

from tests.bus.counters import counted_letters, depth_counter, letters_on_disk
from tests.bus.house import House
from tests.bus.limits import reliability
from tests.bus.listening import Recorder
from tests.bus.mailboxes import hash_of
from tests.bus.test_letter_bounds import fail


def undo_last_id(db: apsw.Connection) -> None:
    """Take back migration 0005."""
    db.execute("ALTER TABLE endpoints ADD COLUMN last_id TEXT")
    db.execute("UPDATE schema_versions SET version = 4 WHERE component = 'bus'")


def undo_letters(db: apsw.Connection) -> None:
    """Take back migration 0004."""
    db.execute("DROP TABLE letters; DROP TABLE letter_counts; ALTER TABLE bus_state DROP COLUMN has_letters")
    db.execute("UPDATE schema_versions SET version = 3 WHERE component = 'bus'")


def undo_servers(db: apsw.Connection) -> None:
    """Take back migration 0003; a process that is gone had served the endpoint."""
    db.execute(
        "DROP INDEX mail_claimed; ALTER TABLE mail DROP COLUMN claimed_by; ALTER TABLE mail DROP COLUMN attempts"
    )
    db.execute("DROP TABLE servers; ALTER TABLE bus_state DROP COLUMN removals")
    db.execute("ALTER TABLE endpoints ADD COLUMN served_by INTEGER")
    number = db.execute("INSERT INTO instances (name) VALUES ('1-gone') RETURNING number").get
    db.execute("UPDATE endpoints SET served_by = ?", (number,))
    db.execute("UPDATE schema_versions SET version = 2 WHERE component = 'bus'")


async def populate(house: House) -> list[str]:
    """Leave a dead letter of a failed handler, an unrouted one, and three messages that wait."""
    bus = await house.bus(reliability=reliability())
    await fail(bus, 1)
    await bus.publish("no.where", 1, from_="c")
    ids = [(await bus.publish("a.b", number, from_="c")).message_id for number in range(3)]
    await bus.close()
    return ids


def make_old(root: Path, *undo: Callable[[apsw.Connection], None]) -> None:
    db = apsw.Connection(str(root / "bus.db"))
    for step in undo:
        step(db)
    db.close()


async def test_bus_from_before_shared_endpoints_keeps_its_mail(house: House) -> None:
    ids = await populate(house)
    box = house.mailbox("a.b").path
    (box / "new" / ids[0]).rename(box / "cur" / ids[0])  # the process was working on it
    make_old(house.root, undo_last_id, undo_letters, undo_servers)
    bus = await house.bus(reliability=reliability())
    assert depth_counter(house.root, "a.b") == 3
    await bus.register_endpoint("a.b")
    got = Recorder()
    await bus.subscribe("a.b", got)
    assert await got.wait(3) == [0, 1, 2]
    assert [letter.subject for letter in await bus.dead_letters()] == ["a.b", "no.where"]


async def test_bus_from_before_letters_were_counted_counts_them_when_it_is_opened(house: House) -> None:
    await populate(house)
    make_old(house.root, undo_last_id, undo_letters)
    await house.bus(reliability=reliability())
    assert counted_letters(house.root, hash_of("a.b")) == letters_on_disk(house.root, hash_of("a.b"))
    assert counted_letters(house.root, "unrouted") == letters_on_disk(house.root, "unrouted")
    assert counted_letters(house.root, "unrouted")[0] == 1
