"""Check, backup, restore and reindex of a relay's store; every check finds a planted violation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from posthouse.journal.verify import Rule
from posthouse.model.clock import STEADY_S, FakeClock
from posthouse.model.errors import PosthouseError
from posthouse.model.event import Coordinate, encode_event
from posthouse.model.node import Role
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.meshes.mesh_replay import check_meshes
from posthouse.relay.messages.consistency import (
    check_confirms,
    check_deliveries,
    check_envelopes,
    check_message_records,
    check_replay,
)
from posthouse.relay.ops.maintenance import (
    RULES,
    backup_relay,
    check_contents,
    check_current,
    check_deleted,
    check_fenced,
    check_ids,
    check_kept,
    check_locks,
    check_records,
    check_relay,
    check_token_counter,
    check_usage,
    reindex_relay,
    restore_relay,
)
from posthouse.relay.pinch.submissions import EnvelopeSubmission, commit_submissions
from posthouse.relay.wire.lock_operations import Acquire
from posthouse.relay.wire.mesh_rows import AccessRow, Verdict
from posthouse.sqlite.connection import Durability, open_writer
from tests.relay.authors import ALICE, BOB, CAROL, Author

RELAY = Author(99).node


async def live(folder: Path, clock: FakeClock) -> None:
    """Run a relay with a history in which every kind of record occurs."""
    core = await RelayEngine.start(EngineSettings(folder, RELAY, admins=(ALICE.node,), has_pinch=True), clock)
    await core.locks.ask(ALICE.node, Acquire("build", 5_000))
    envelope = EnvelopeSubmission(
        "pinch:a@relay.test", "pinch:b@relay.test", b"m1", 4, b"envelope", lambda _outcome: None
    )
    await core.store.submit(lambda unit: commit_submissions(unit, core.settings.deliveries, [envelope]))
    for number in range(3):
        await core.accept(ALICE.raw(1, ("t", str(number)), ("e", "0" * 64)))
        await core.accept(BOB.raw(30_000, ("d", "x"), content=str(number)))
    await core.accept(ALICE.raw(1000, ("p", BOB.node), ("c", "1")))
    await core.accept(ALICE.raw(1, ("expiration", str(clock.wall_ns() // 10**9 + 5))))
    await core.administration.create_mesh(ALICE.node, "lab")
    await core.administration.save_member(ALICE.node, "lab", BOB.node, "bob", Role.MEMBER)
    await core.administration.save_member(ALICE.node, "lab", CAROL.node, "carol", Role.READER)
    await core.administration.save_access(ALICE.node, AccessRow("lab", "*", lock=Verdict.DENY))
    await core.participation.create_topic(BOB.node, "lab", "news")
    await core.participation.subscribe(CAROL.node, "lab", "news")
    await core.participation.block(CAROL.node, "lab", BOB.node)
    await core.administration.remove_member(ALICE.node, "lab", CAROL.node)
    await core.accept(b"{")
    clock.advance(STEADY_S)
    await core._housekeeping.run_once()
    await core.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def path(tmp_path: Path, clock: FakeClock) -> Path:
    asyncio.run(live(tmp_path / "relay", clock))
    return tmp_path / "relay" / "relay.db"


@pytest.fixture
def db(path: Path) -> Iterator[apsw.Connection]:
    connection = open_writer(path, Durability.FULL)
    yield connection
    connection.close()


def test_history_of_a_relay_has_no_findings(path: Path) -> None:
    assert check_relay(path) == []


DAMAGE = [
    ("DELETE FROM events WHERE seq = (SELECT min(seq) FROM events)", "has no event"),
    ("INSERT INTO events (seq, id, pubkey, kind, created_at_ns, mesh)"
     " SELECT 2, randomblob(32), pubkey, 1, 1, 'main' FROM events LIMIT 1", "has no record"),
    ("UPDATE events SET id = (SELECT id FROM events ORDER BY seq LIMIT 1) WHERE seq = (SELECT max(seq) FROM events)",
     "has the id of an earlier event"),
    ("UPDATE events SET kind = kind + 1 WHERE kind = 1 AND raw IS NOT NULL", "differ from its content"),
    ("UPDATE events SET raw = CAST(replace(CAST(raw AS TEXT), '\"content\":\"\"', '\"content\":\"x\"') AS BLOB)"
     " WHERE seq = (SELECT min(seq) FROM events)", "does not hash to its id"),
    ("UPDATE events SET raw = x'00' WHERE seq = (SELECT min(seq) FROM events)", "cannot be read"),
    ("DELETE FROM event_terms WHERE seq = (SELECT max(seq) FROM event_terms)", "terms:"),
    ("INSERT INTO event_terms VALUES (randomblob(16), 1)", "terms:"),
    ("DELETE FROM event_ids WHERE seq = (SELECT max(seq) FROM event_ids)", "ids:"),
    ("INSERT INTO event_ids VALUES (randomblob(8), 1)", "ids:"),
    ("DELETE FROM current_events", "is newer than the event that the index names"),
    ("UPDATE current_events SET event_seq = event_seq - 2", "no event matches its entry"),
    ("DELETE FROM members WHERE name = 'bob'", "meshes: member lab"),
    ("UPDATE members SET role = 'reader' WHERE name = 'bob'", "meshes: member lab"),
    ("DELETE FROM topics", "meshes: topic lab"),
    ("INSERT INTO subscriptions VALUES ('lab', 'x', 'y')", "meshes: subscription lab"),
    ("DELETE FROM blocks", "meshes: block lab"),
    ("UPDATE meshes SET is_open = 1 WHERE mesh = 'lab'", "meshes: mesh lab"),
    ("UPDATE access SET read = 'deny'", "meshes: access lab"),
    ("UPDATE meshes SET approves_keys = 1 WHERE mesh = 'lab'", "meshes: approval lab"),
    ("INSERT INTO held_keys SELECT mesh, node, 'x', 0 FROM members WHERE name = 'bob'", "meshes: held lab"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "expected"), DAMAGE)
def test_damage_is_found(path: Path, db: apsw.Connection, statement: str, expected: str) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.execute(statement)
    db.execute("COMMIT")
    assert db.total_changes() > 0
    assert any(expected in finding for finding in check_relay(path))


#: for every rule a change to a sound store that the rule finds
VIOLATIONS: dict[Rule, str] = {
    check_records: "DELETE FROM events WHERE seq = (SELECT min(seq) FROM events)",
    check_contents: "UPDATE events SET kind = kind + 1 WHERE kind = 1 AND raw IS NOT NULL",
    check_ids: "DELETE FROM event_ids",
    check_current: "DELETE FROM current_events",
    check_fenced: "INSERT INTO fenced_events SELECT min(seq), 'main', 'db', 1 FROM events",
    check_deleted: "INSERT INTO deleted_addresses SELECT address, created_at_ns, 0 FROM current_events LIMIT 1",
    check_usage: "UPDATE mesh_usage SET bytes = bytes + 1",
    check_kept: "INSERT INTO kept_events (seq) SELECT min(seq) FROM events",
    check_meshes: "DELETE FROM topics",
    check_locks: "UPDATE locks SET owner = 'another'",
    check_token_counter: "UPDATE token_counter SET token = 0",
    check_message_records: "UPDATE message_records SET fingerprint = zeroblob(32)",
    check_deliveries: "UPDATE mailboxes SET open_rows = open_rows + 1",
    check_replay: "UPDATE deliveries SET state = 'sent'",
    check_envelopes: "DELETE FROM pinch_envelopes",
    check_confirms: (
        "INSERT INTO journal (at_ns, type, mesh, actor, ref, body) SELECT max(at_ns), 'pinch.confirmed', 'pinch',"
        """ 'pinch:b@relay.test', 'm1', '{"timestamp": 1, "signature": "00"}' FROM journal"""
    ),
}


def test_every_rule_has_a_planted_violation() -> None:
    assert VIOLATIONS.keys() == set(RULES)


@pytest.mark.parametrize("rule", VIOLATIONS, ids=lambda rule: rule.__name__)
def test_check_names_the_violation_of_each_rule(path: Path, db: apsw.Connection, rule: Rule) -> None:
    assert list(rule(db)) == []
    db.execute(VIOLATIONS[rule])
    found = list(rule(db))
    assert found
    assert set(found) <= set(check_relay(path))


def test_reindex_rebuilds_the_derived_tables(path: Path, db: apsw.Connection, clock: FakeClock) -> None:
    db.execute("DELETE FROM event_terms; DELETE FROM current_events")
    assert check_relay(path) != []
    reindex_relay(path)
    assert check_relay(path) == []


async def test_restored_store_has_a_new_epoch_and_accepts_events(tmp_path: Path, clock: FakeClock) -> None:
    folder = tmp_path / "relay"
    await live(folder, clock)
    settings = EngineSettings(folder, RELAY, admins=(ALICE.node,))
    await asyncio.to_thread(backup_relay, folder / "relay.db", tmp_path / "backup.db")
    first = await RelayEngine.start(settings, clock)
    late = BOB.event(30_000, ("d", "x"), content="late")
    await first.accept_many([encode_event(late)])
    cursor, epoch = first.cursor((await first.store.extent()).head), first.store.epoch
    await first.close()
    await asyncio.to_thread(restore_relay, tmp_path / "backup.db", folder / "relay.db", clock)
    assert await asyncio.to_thread(check_relay, folder / "relay.db") == []
    second = await RelayEngine.start(settings, clock)
    assert second.store.epoch != epoch
    with pytest.raises(PosthouseError) as caught:
        await second.query(ALICE.node, [], cursor=cursor)
    assert caught.value.code == "cursor_reset"
    found = await second.address(ALICE.node, Coordinate(30_000, BOB.node, "x"))
    assert b"late" not in found.raw
    await second.close()
