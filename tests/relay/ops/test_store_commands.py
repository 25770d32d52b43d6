"""The commands that work on a relay's store from outside, one after the other on one store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from posthouse.model.clock import SystemClock
from posthouse.model.node import Role
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.sqlite.connection import Durability, open_writer
from tests.cli.command_line import CommandLine
from tests.relay.authors import Author

CLOCK = SystemClock()
ALICE, BOB = Author(1, CLOCK), Author(2, CLOCK)
RELAY = Author(99).node


async def live(folder: Path, store: str | None = None) -> str:
    """Accept an event and make an invite; return its code."""
    core = await RelayEngine.start(EngineSettings(folder, RELAY, admins=(ALICE.node,), store=store), CLOCK)
    await core.accept(ALICE.raw(30_000, ("d", "x")))
    given = await core.invites.create(ALICE.node, "main", uses=1, expires_s=600, role=Role.MEMBER)
    await core.close()
    return given.code


async def join(folder: Path, code: str) -> str:
    """Use an invite; return the code of the refusal, if there is one."""
    core = await RelayEngine.start(EngineSettings(folder, RELAY), CLOCK)
    try:
        await core.invites.redeem(BOB.node, code, "bob")
    except Exception as refusal:  # noqa: BLE001 - the test checks it
        return str(refusal)
    finally:
        await core.close()
    return ""


def test_store_is_backed_up_damaged_repaired_and_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    posthouse, folder, backup = CommandLine(tmp_path, capsys), tmp_path / "relay", tmp_path / "backup.db"
    code = asyncio.run(live(folder))
    place = ("--data-dir", str(folder), "--json")
    assert posthouse("relay", "backup", str(backup), *place).exit == 0
    _damage(folder / "relay.db")
    assert posthouse("relay", "check", *place).exit != 0
    assert posthouse("relay", "reindex", *place).exit == 0
    assert posthouse("relay", "check", *place).exit == 0
    assert posthouse("relay", "restore", str(backup), *place).exit == 0
    assert posthouse("relay", "verify", *place).exit == 0
    assert "used up" in asyncio.run(join(folder, code))


def test_size_names_tables_and_meshes_and_compact_gives_space_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    posthouse, folder = CommandLine(tmp_path, capsys), tmp_path / "relay"
    asyncio.run(live(folder))
    place = ("--data-dir", str(folder), "--json")
    db = open_writer(folder / "relay.db", Durability.FULL)
    db.execute("CREATE TABLE ballast (x)")
    db.execute("INSERT INTO ballast SELECT zeroblob(2000000)")
    db.execute("DROP TABLE ballast")
    db.pragma("wal_checkpoint", "truncate")
    db.close()
    found = json.loads(posthouse("relay", "size", *place).out)
    assert found["free_bytes"] > 1_900_000
    assert found["is_incremental"]
    assert {each["table"] for each in found["tables"]} >= {"events", "journal"}
    assert [(each["mesh"], each["events"]) for each in found["meshes"]] == [("main", 1)]
    done = json.loads(posthouse("relay", "compact", "--offline", *place).out)
    assert done["released"] > 1_900_000
    assert posthouse("relay", "verify", *place).exit == 0
    assert (folder / "relay.db").stat().st_mode & 0o777 == 0o600


def test_size_of_a_store_on_postgresql_names_its_tables_and_meshes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    posthouse = CommandLine(tmp_path, capsys)
    asyncio.run(live(tmp_path / "relay", database))
    monkeypatch.setenv("POSTHOUSE_RELAY_STORE", database)
    found = posthouse("relay", "size", "--json").value
    sizes = {each["table"]: each["bytes"] for each in found["tables"]}
    assert sizes["events"] > 0 and sizes["journal"] > 0
    assert sum(sizes.values()) <= found["bytes"]
    assert [(each["mesh"], each["events"]) for each in found["meshes"]] == [("main", 1)]
    assert "bytes of content" in posthouse("relay", "size").out


def test_store_of_an_older_version_is_converted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    posthouse, folder = CommandLine(tmp_path, capsys), tmp_path / "relay"
    asyncio.run(live(folder))
    path, place = folder / "relay.db", ("--data-dir", str(folder), "--json")
    db = open_writer(path, Durability.FULL)
    db.pragma("journal_mode", "delete")
    db.pragma("auto_vacuum", "none")
    db.execute("VACUUM")
    db.close()
    assert not json.loads(posthouse("relay", "size", *place).out)["is_incremental"]
    assert posthouse("relay", "compact", "--offline", *place).exit == 0
    assert json.loads(posthouse("relay", "size", *place).out)["is_incremental"]
    assert posthouse("relay", "check", *place).exit == 0


@pytest.mark.parametrize("command", ["check", "verify"])
def test_kept_event_whose_record_is_not_pruned_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    posthouse, folder = CommandLine(tmp_path, capsys), tmp_path / "relay"
    asyncio.run(live(folder))
    db = open_writer(folder / "relay.db", Durability.FULL)
    db.execute("INSERT INTO kept_events (seq) SELECT max(seq) FROM events")
    db.close()
    result = posthouse("relay", command, "--data-dir", str(folder), "--json")
    assert result.exit == 1
    assert "kept:" in result.out


def _damage(path: Path) -> None:
    db = open_writer(path, Durability.FULL)
    db.execute("DELETE FROM current_events")
    db.close()
