"""The commands that work on a relay's store from outside, one after the other on one store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from posthouse.model.clock import SystemClock
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.wire.mesh_rows import Role
from posthouse.sqlite.connection import Durability, open_writer
from tests.cli.command_line import CommandLine
from tests.relay.authors import Author

CLOCK = SystemClock()
ALICE, BOB = Author(1, CLOCK), Author(2, CLOCK)
RELAY = Author(99).node


async def live(folder: Path) -> str:
    """Accept an event and make an invite; return its code."""
    core = await RelayEngine.start(EngineSettings(folder, RELAY, admins=(ALICE.node,)), CLOCK)
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
