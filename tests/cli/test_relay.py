from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine
from tests.faults.relay_process import RelayProcess

pytestmark = pytest.mark.xdist_group("cli-relay")


@pytest.fixture
def relay(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RelayProcess]:
    """A running relay of this home, with three events."""
    cli("keys", "new")
    with RelayProcess(tmp_path, home=cli.home) as running:
        monkeypatch.setenv("POSTHOUSE_CLIENT_RELAY", running.url)
        monkeypatch.setenv("POSTHOUSE_RELAY_DATA_DIR", str(running.data_dir))
        for content in ("a", "b", "c"):
            cli("event", "publish", content, "--kind", "30001", "--tag", "d=x")
        yield running


def test_info_shows_the_relay_and_if_its_key_is_pinned(cli: CommandLine, relay: RelayProcess) -> None:
    answer = cli("relay", "info", "--json").value
    assert (answer["relay"], answer["pinned"], answer["url"]) == (relay.node, relay.node, relay.url)
    assert answer["limits"]["event_bytes"] == 131_072
    shown = cli("relay", "info", relay.url).out
    assert "pinned" in shown
    assert "feature  locks\n" in shown and "feature  max_payload 49152\n" in shown
    assert "feature  agents version=1\n" in shown


def test_running_relay_is_backed_up_verified_and_checked(cli: CommandLine, relay: RelayProcess, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert cli("relay", "backup", str(copy), "--json").value["bytes"] == copy.stat().st_size
    assert copy.stat().st_mode & 0o777 == 0o600
    assert cli("relay", "verify", str(copy), "--json").value["findings"] == []
    assert cli("relay", "verify", "--json").value["findings"] == []
    assert cli("relay", "check", "--json").value["findings"] == []
    assert cli("relay", "backup", str(copy), "--json").problem["code"] == "backup_exists"


@pytest.mark.parametrize("command", [("restore", "copy.db"), ("reindex",)])
def test_running_relay_is_not_replaced_or_reindexed(
    cli: CommandLine, relay: RelayProcess, tmp_path: Path, command: tuple[str, ...]
) -> None:
    cli("relay", "backup", str(tmp_path / "copy.db"))
    tokens = [str(tmp_path / part) if part.endswith(".db") else part for part in command]
    refused = cli("relay", *tokens, "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.REFUSED, "store_in_use")


def test_restored_relay_has_the_old_events_and_refuses_later_cursors(
    cli: CommandLine, relay: RelayProcess, tmp_path: Path
) -> None:
    cli("relay", "backup", str(tmp_path / "copy.db"))
    cli("event", "publish", "lost", "--kind", "1")
    cursor = _cursor_behind_everything(cli)
    relay.kill()
    assert cli("relay", "restore", str(tmp_path / "copy.db"), "--json").exit == 0
    relay.start()
    assert cli("event", "query", "--kind", "1", "--count", "--json").value == {"count": 0}
    assert cli("event", "query", "--kind", "30001", "--count", "--json").value == {"count": 3}
    refused = cli("event", "tail", "--cursor", cursor, "--stored", "--json")
    assert refused.problem["code"] == "cursor_reset"


@pytest.mark.parametrize("setting", ["environment", "flag", "beside"])
def test_older_copy_of_the_store_is_refused_until_it_is_restored_in_place(
    cli: CommandLine, relay: RelayProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    given = ("--high-water", str(tmp_path / "mark"))
    if setting == "environment":
        monkeypatch.setenv("POSTHOUSE_RELAY_HIGH_WATER", given[1])
    flags = given if setting == "flag" else ()
    relay.stop()
    relay.start(*flags)
    assert (tmp_path / "mark").exists() == (setting != "beside")
    relay.stop()
    store = relay.data_dir / "relay.db"
    copy = store.read_bytes()
    relay.start(*flags)
    cli("event", "publish", "lost", "--kind", "1")
    relay.stop()
    store.write_bytes(copy)
    refused = cli("relay", "up", "--listen", "127.0.0.1:0", *flags, "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.BROKEN, "store_rolled_back")
    assert cli("relay", "restore", "--in-place", *flags, "--json").value["backup"] is None
    relay.start(*flags)
    assert cli("event", "query", "--kind", "1", "--count", "--json").value == {"count": 0}


def test_lost_store_is_begun_anew_only_when_told_so(cli: CommandLine, relay: RelayProcess) -> None:
    relay.stop()
    (relay.data_dir / "relay.db").unlink()
    refused = cli("relay", "up", "--listen", "127.0.0.1:0", "--json")
    assert (refused.exit, refused.problem["code"]) == (Exit.BROKEN, "store_missing")
    relay.start("--new")
    assert cli("event", "query", "--kind", "30001", "--count", "--json").value == {"count": 0}
    relay.stop()
    assert cli("relay", "up", "--new", "--json").problem["code"] == "store_exists"


@pytest.mark.parametrize("arguments", [(), ("copy.db", "--in-place")])
def test_restore_wants_a_backup_or_in_place(cli: CommandLine, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert cli("relay", "restore", *arguments, "--data-dir", str(tmp_path)).exit == Exit.USAGE


def test_reindex_repairs_what_check_finds(cli: CommandLine, relay: RelayProcess) -> None:
    relay.kill()
    db = apsw.Connection(str(relay.data_dir / "relay.db"))
    db.execute("DELETE FROM current_events")
    db.close()
    found = cli("relay", "check", "--json")
    assert found.exit == Exit.REFUSED
    assert cli("relay", "reindex", "--json").exit == 0
    assert cli("relay", "check", "--json").value["findings"] == []


def test_store_that_is_not_there_is_a_usage_error(cli: CommandLine, tmp_path: Path) -> None:
    for command in ("verify", "check", "reindex"):
        assert cli("relay", command, "--data-dir", str(tmp_path / "nothing")).exit == Exit.USAGE
    assert cli("relay", "restore", str(tmp_path / "nothing.db")).exit == Exit.USAGE
    assert not (tmp_path / "nothing").exists()


def _cursor_behind_everything(cli: CommandLine) -> str:
    line = cli("event", "query", "--kind", "30001", "--limit", "2", "--json").value
    assert line["cursor"] is not None
    tokens = ("event", "tail", "--kind", "1", "--cursor", line["cursor"], "--count", "1", "--json")
    return str(cli(*tokens).value["cursor"])
