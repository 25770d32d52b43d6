"""A store whose deliveries were written by the first version of their tables opens, and nothing is lost or wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apsw
import pytest

from posthouse.model.clock import FakeClock
from posthouse.relay.store.sqlite.deliveries import DELIVERIES
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.relay.edge import Author
from tests.relay.messages.checked import checked, findings, history
from tests.relay.messages.correspondents import direct, send

pytestmark = pytest.mark.sqlite

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
        UPDATE schema_versions SET version = 1 WHERE component = 'deliveries';
        """
    )
    db.execute("COMMIT")
    db.close()


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
