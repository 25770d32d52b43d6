"""A backup with the relay's key in one archive: written once, private, restored anywhere, never over another key."""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path

import pytest

from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine
from tests.cli.conftest import cli
from tests.faults.relay_process import RelayProcess

__all__ = ["cli"]


@pytest.fixture
def stored(cli: CommandLine, tmp_path: Path) -> Path:
    """The directory of a relay that has an event and has stopped."""
    cli("keys", "new")
    with RelayProcess(tmp_path, home=cli.home) as relay:
        assert cli("event", "publish", "kept", "--relay", relay.url, "--json").exit == Exit.OK
        relay.stop()
    return relay.data_dir


def archive_of(cli: CommandLine, stored: Path, tmp_path: Path) -> Path:
    target = tmp_path / "backup.tar"
    answer = cli("relay", "backup", "--with-key", str(target), "--data-dir", str(stored), "--json")
    assert answer.value["has_key"] is True
    return target


def test_an_archive_restores_store_and_key_into_an_empty_directory(
    cli: CommandLine, stored: Path, tmp_path: Path
) -> None:
    archive = archive_of(cli, stored, tmp_path)
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    elsewhere = tmp_path / "elsewhere" / "relay"
    answer = cli("relay", "restore", str(archive), "--data-dir", str(elsewhere), "--json")
    assert answer.value["key_restored"] is True
    assert (elsewhere / "key.json").read_bytes() == (stored / "key.json").read_bytes()
    assert stat.S_IMODE((elsewhere / "key.json").stat().st_mode) == 0o600
    with RelayProcess(elsewhere.parent, home=cli.home) as relay:
        found = cli("event", "query", "--relay", relay.url, "--json").value
    assert [event["content"] for event in found["events"]] == ["kept"]


def test_an_archive_is_verified_as_a_plain_backup_is(cli: CommandLine, stored: Path, tmp_path: Path) -> None:
    archive = archive_of(cli, stored, tmp_path)
    assert cli("relay", "verify", str(archive), "--json").value["findings"] == []
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".tar", ".tmp")) == ["backup.tar"]


def test_an_archive_never_replaces_a_file(cli: CommandLine, stored: Path, tmp_path: Path) -> None:
    archive = archive_of(cli, stored, tmp_path)
    before = archive.read_bytes()
    again = cli("relay", "backup", "--with-key", str(archive), "--data-dir", str(stored), "--json")
    assert again.problem["code"] == "backup_exists"
    assert archive.read_bytes() == before


def test_an_archive_of_another_relay_is_refused_and_changes_nothing(
    cli: CommandLine, stored: Path, tmp_path: Path
) -> None:
    archive = archive_of(cli, stored, tmp_path)
    with RelayProcess(tmp_path / "other", home=cli.home) as other:
        other.stop()
    before = {path.name: path.read_bytes() for path in other.data_dir.iterdir()}
    refused = cli("relay", "restore", str(archive), "--data-dir", str(other.data_dir), "--json")
    assert refused.problem["code"] == "backup_key_differs"
    assert {path.name: path.read_bytes() for path in other.data_dir.iterdir()} == before


@pytest.mark.parametrize("names", [(), ("relay.db",), ("relay.db", "link")])
def test_a_file_that_is_no_backup_is_named(cli: CommandLine, tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "odd.tar"
    with tarfile.open(path, "w") as archive:
        for name in names:
            entry = tarfile.TarInfo("key.json" if name == "link" else name)
            if name == "link":
                entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(entry, io.BytesIO(b""))
    refused = cli("relay", "restore", str(path), "--data-dir", str(tmp_path / "relay"), "--json")
    assert refused.problem["code"] == "backup_invalid"
    assert not (tmp_path / "relay" / "relay.db").exists()
