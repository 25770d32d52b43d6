"""Daemons as processes: with which exit code they end, and what they leave in their logs."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.keys import keyfile
from tests.faults.child import Child
from tests.faults.relay_process import RelayProcess

START_S = 60


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path / "r") as running:
        yield running


def daemon(folder: Path, relay: RelayProcess, *flags: str) -> Child:
    options = ("--dir", folder, "--relay", relay.url, "--foreground", "--persistent", "--no-tcp", "--json", *flags)
    return Child("posthouse.cli.main", "daemon", "up", *options, env={"POSTHOUSE_HOME": str(folder.parent / "home")})


def logged(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "daemon.log").read_text().splitlines()]


def test_the_older_of_two_processes_with_one_key_exits_with_4(tmp_path: Path, relay: RelayProcess) -> None:
    with daemon(tmp_path / "a", relay) as first:
        first.wait_lines(1, START_S)
    shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("sock"))
    with daemon(tmp_path / "a", relay) as first:
        first.wait_lines(1, START_S)
        with daemon(tmp_path / "b", relay) as second:
            second.wait_lines(1, START_S)
            assert first.wait(START_S) == 4
            assert "mailbox_replaced" in first.errors


def test_a_copied_identity_exits_with_4_and_says_what_helps(tmp_path: Path, relay: RelayProcess) -> None:
    folder = tmp_path / "a"
    with daemon(folder, relay) as first:
        first.wait_lines(1, START_S)
    path = folder / "main" / "host_fingerprint.json"
    other = json.loads(path.read_text()) | {"fingerprint": "0" * 64, "host": "1" * 64}
    path.write_text(json.dumps(other))
    with daemon(folder, relay) as second:
        assert second.wait(START_S) == 4
        assert "host_changed" in second.errors
        assert "accept-host" in second.errors


def test_the_log_has_json_lines_others_may_read_and_no_secret(tmp_path: Path, relay: RelayProcess) -> None:
    folder = tmp_path / "a"
    with daemon(folder, relay) as running:
        running.wait_lines(1, START_S)
    assert stat.S_IMODE((folder / "daemon.log").stat().st_mode) == 0o600
    assert "daemon_started" in [line["event"] for line in logged(folder)]
    text = (folder / "daemon.log").read_text()
    assert keyfile.load(folder / "main" / "keypair.json").reveal_seed().hex() not in text
    assert (folder / "local_token").read_text().strip() not in text
