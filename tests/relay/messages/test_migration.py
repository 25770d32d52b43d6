"""A store that was written with the first version of its tables opens, and nothing is lost or wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from posthouse.journal.store import JOURNAL
from posthouse.model.clock import FakeClock
from posthouse.relay.ops.maintenance import reindex_relay
from posthouse.relay.store.sqlite.deliveries import DELIVERIES
from posthouse.relay.store.sqlite.lock_requests import LOCKS
from posthouse.relay.store.sqlite.pinch import PINCH
from posthouse.relay.store.sqlite.store import FILE_NAME, RELAY
from posthouse.sqlite.schema import APPLICATION_ID
from tests.relay.edge import Author
from tests.relay.messages.checked import checked, findings, history
from tests.relay.messages.correspondents import direct, send
from tests.relay.replication.leader import tables_of

pytestmark = pytest.mark.sqlite

_FIRST = (JOURNAL, RELAY, LOCKS, DELIVERIES, PINCH)  # the others came later
_JOURNAL_TABLES = {"journal", "journal_state", "sqlite_sequence"}
# an old store has every request id in its table, so a migration notes that the table goes up to the head
_CHANGED_BY_A_MIGRATION = {"lock_requests_state"}
_CHANGED_BY_A_START = _JOURNAL_TABLES | {"audience_versions", "swept_records", "locks", "lock_run", "token_counter"}
_TABLES = ("message_records", "deliveries")
_INDEXES = ("message_records_by_expiry", "mailboxes_waiting", "deliveries_open", "deliveries_parked")


def make_old(path: Path) -> None:
    """Convert the tables of deliveries back to their first version."""
    first = DELIVERIES.migrations[0]
    db = apsw.Connection(str(path))
    db.execute("BEGIN")
    for name in _TABLES:
        db.execute(f"ALTER TABLE {name} RENAME TO new_{name}")
    for name in ("deliveries_open", "deliveries_parked"):
        db.execute(f"DROP INDEX {name}")
    for what in (*(f"TABLE {name}" for name in _TABLES), *(f"INDEX {name}" for name in _INDEXES)):
        statement = re.search(rf"CREATE {what} .*?;\n", first, re.DOTALL)
        assert statement is not None, what
        db.execute(statement[0])
    db.execute(
        """
        INSERT INTO message_records
        SELECT r.seq, s.mesh, s.node, r.client_message_id, e.id, r.fingerprint, iif(r.topic IS NULL, 'dm', 'topic'),
            coalesce(r.topic, lower(hex(e.recipient))), r.first_seen_at_ns, r.expires_at_ns, r.history_available
        FROM new_message_records AS r JOIN events AS e ON e.seq = r.seq JOIN mailboxes AS s ON s.mailbox = r.sender;
        INSERT INTO deliveries SELECT * FROM new_deliveries;
        DROP TABLE new_message_records;
        DROP TABLE new_deliveries;
        DROP TABLE swept_records;
        DROP TABLE receipts;
        DROP TABLE gaps;
        DROP TRIGGER blocks_inserted;
        DROP TRIGGER blocks_deleted;
        DROP TRIGGER retired_keys_inserted;
        DROP TRIGGER retired_keys_updated;
        UPDATE schema_versions SET version = 1 WHERE component = 'deliveries';
        """
    )
    db.execute("COMMIT")
    db.close()


def make_first(path: Path) -> None:
    """Replace a store by one with the first version of all tables, and with the rows that those can hold."""
    make_old(path)  # the tables whose rows have another form since
    first = path.with_name("first.db")
    db = apsw.Connection(str(first))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("ATTACH ? AS newest", (str(path),))
    db.execute("BEGIN")
    for component in _FIRST:
        db.execute(component.migrations[0])
    for (name,) in db.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'").fetchall():
        _copy_rows(db, str(name))
    # the first version counted each record when it was written
    db.execute("UPDATE main.journal_state SET body_bytes = (SELECT sum(octet_length(body)) FROM main.journal)")
    db.execute("CREATE TABLE schema_versions (component TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT")
    db.executemany("INSERT INTO schema_versions VALUES (?, 1)", [(component.name,) for component in _FIRST])
    db.execute("COMMIT")
    db.close()
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    first.rename(path)


def _copy_rows(db: apsw.Connection, name: str) -> None:
    """Copy the columns that a table had from the beginning; a column that is gone since was 0."""
    first, newest = (
        [row[1] for row in db.execute(f"PRAGMA {schema}.table_info({name})")] for schema in ("main", "newest")
    )
    values = [column if column in newest else "0" for column in first]
    db.execute(f"DELETE FROM main.{name}")
    db.execute(f"INSERT INTO main.{name} ({','.join(first)}) SELECT {','.join(values)} FROM newest.{name}")


def contents(path: Path) -> dict[str, list[Any]]:
    """Return the rows of deliveries, and how the tables are made."""
    db = apsw.Connection(str(path))
    tables = {
        name: db.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
        for name in ("message_records", "deliveries", "mailboxes")
    }
    tables["schema"] = db.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
    db.close()
    return tables


async def test_an_old_store_becomes_what_a_new_one_is(tmp_path: Path) -> None:
    data_dir = tmp_path / "relay"
    await history(data_dir)
    path = data_dir / FILE_NAME
    before = contents(path)
    make_old(path)
    assert contents(path) != before
    async with checked(data_dir):
        pass
    assert contents(path) == before
    assert findings(data_dir) == []


async def test_a_store_with_the_first_version_of_every_table_keeps_all_its_rows(tmp_path: Path) -> None:
    data_dir, path = tmp_path / "relay", tmp_path / "relay" / FILE_NAME
    await history(data_dir)
    alice, bob = Author(), Author()
    async with checked(data_dir) as edge:
        admin = await edge.token(edge.admin)
        await edge.post("/v1/meshes", {"name": "lab", "open": False}, admin)
        await edge.post("/v1/meshes/lab/members", {"node": alice.node, "name": "alice", "role": "member"}, admin)
        await edge.post("/v1/meshes/lab/access", {"node": "*", "lock": "deny"}, admin)
        await edge.post("/v1/meshes/lab/invites", {"uses": 3, "expires_s": 600, "role": "reader"}, admin)
        asked = {"resource": "db", "lease_ms": 60_000}
        held = (await edge.post("/v1/locks/acquire", asked, await edge.token(bob))).value
        fence = ("fence", "db", str(held["token"]))
        await edge.publish(*[bob.event(30_000, text, [("d", "x"), fence]) for text in ("old version", "current")])
    reindex_relay(path)  # the first version indexed each event at once
    before = tables_of(path)
    assert all(before[name] for name in ("access", "invites", "fenced_events", "mesh_usage", "deliveries", "mentions"))
    make_first(path)
    assert set(tables_of(path)) < set(before)
    async with checked(data_dir) as edge:
        token = await edge.token(alice)
        found = await edge.get(f"/v1/events/address/30000/{bob.node}?d=x", token)
        assert found.value["content"] == "current"
        again = await edge.post("/v1/locks/acquire", asked | {"resource": "other"}, token)
        assert again.value["token"] > held["token"]
    after = tables_of(path)
    assert set(after) == set(before)
    added = {name: [row for row in after[name] if row not in rows] for name, rows in before.items()}
    lost = {name: [row for row in rows if row not in after[name]] for name, rows in before.items()}
    changed = _CHANGED_BY_A_START | _CHANGED_BY_A_MIGRATION
    assert {name for name, rows in lost.items() if rows} <= changed
    assert {name for name, rows in added.items() if rows} <= changed | {"members"}, "a new admin"


async def test_a_retry_of_a_message_in_an_old_store_gets_its_answer(tmp_path: Path) -> None:
    alice, bob = Author(), Author()
    message = direct(alice, bob, "x", "c-1")
    async with checked(tmp_path / "relay") as edge:
        (first,) = await send(edge, message)
    make_old(tmp_path / "relay" / FILE_NAME)
    async with checked(tmp_path / "relay") as edge:
        (again,) = await send(edge, message)
        assert (again.status, again.value["id"], again.value["seq"]) == (200, first.value["id"], first.value["seq"])
        (other,) = await send(edge, direct(alice, bob, "y", "c-1"))
        assert other.status == 409


async def test_what_an_old_store_swept_stays_known_by_its_id(tmp_path: Path) -> None:
    clock = FakeClock()
    alice, bob = Author(clock), Author(clock)
    message = direct(alice, bob, "x", "c-1")
    async with checked(tmp_path / "relay", clock, record_retention_days=7, queue_ttl_s=3600) as edge:
        await send(edge, message)
        clock.advance(8 * 86_400)
        await edge.server.context.engine.sweeper.sweep()
    make_old(tmp_path / "relay" / FILE_NAME)
    async with checked(tmp_path / "relay", clock) as edge:
        (again,) = await send(edge, message)
        assert (again.status, again.value["duplicate"]) == (200, True)
