"""A relay in the background: started, shown, stopped, found dead, and described for a service manager."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.model.codes.spec import Exit
from posthouse.sqlite.store_lock import StoreLock
from tests.cli.command_line import CommandLine
from tests.cli.test_service_units import config, verify
from tests.client.certificates import make_certificate
from tests.sqlite.waiting import eventually

__all__ = ["config"]


@pytest.fixture
def relay(cli: CommandLine) -> Iterator[CommandLine]:
    """A relay in the background."""
    cli("keys", "new")
    started = cli("relay", "up", "--detach", "--listen", "127.0.0.1:0", "--json")
    assert started.exit == Exit.OK, started.err
    yield cli
    assert cli("relay", "down").exit == Exit.OK


def test_a_detached_relay_answers_and_is_shown_by_status(relay: CommandLine) -> None:
    shown = relay("relay", "status", "--json")
    assert shown.exit == Exit.OK
    assert (shown.value["running"], shown.value["health"]) == (True, "ok")
    assert relay("event", "publish", "hello", "--relay", shown.value["url"], "--json").exit == Exit.OK
    log = relay.home / "relay" / "relay.log"
    assert "relay_started" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_starting_a_running_relay_again_names_the_one_that_runs(relay: CommandLine) -> None:
    first = relay("relay", "status", "--json").value
    again = relay("relay", "up", "--detach", "--listen", "127.0.0.1:0", "--json")
    assert (again.exit, again.value["pid"]) == (Exit.OK, first["pid"])


def test_a_restore_under_a_running_relay_names_the_directory_that_is_in_use(relay: CommandLine) -> None:
    relay("relay", "backup", str(relay.home / "copy.db"))
    refused = relay("relay", "restore", str(relay.home / "copy.db"), "--json")
    assert (refused.problem["code"], refused.problem["path"]) == ("store_in_use", str(relay.home / "relay"))


def test_stopping_a_relay_waits_for_its_end_and_a_second_time_does_nothing(cli: CommandLine) -> None:
    pid = cli("relay", "up", "--detach", "--listen", "127.0.0.1:0", "--json").value["pid"]
    assert cli("relay", "down", "--json").value == {"stopped": True, "pid": pid}
    status = cli("relay", "status", "--json")
    assert (status.exit, status.value["running"]) == (Exit.UNREACHABLE, False)
    assert cli("relay", "down", "--json").value == {"stopped": False, "pid": None}


def test_a_killed_relay_counts_as_stopped_whatever_its_record_says(cli: CommandLine) -> None:
    pid = cli("relay", "up", "--detach", "--listen", "127.0.0.1:0", "--json").value["pid"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (cli.home / "relay" / "run.json").exists()
    assert cli("relay", "status", "--json").value["running"] is False
    assert cli("relay", "down", "--json").value["stopped"] is False


def test_a_relay_that_starts_is_not_taken_for_the_one_that_was_killed(cli: CommandLine) -> None:
    pid = cli("relay", "up", "--detach", "--listen", "127.0.0.1:0", "--json").value["pid"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # the second relay ends before it is ready
        refused = cli("relay", "up", "--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--json")
    assert refused.problem["code"] == "listen_failed"
    lock = StoreLock(cli.home / "relay" / "relay", exclusive=True)  # as a relay that starts
    assert cli("relay", "status", "--json").value["health"] == "starting or stopping"
    assert cli("relay", "down", "--json").problem["code"] == "relay_run_unknown"
    lock.close()


def test_status_reaches_a_relay_that_has_public_names_and_tls(cli: CommandLine, tmp_path: Path) -> None:
    cli("keys", "new")
    certificate = make_certificate(tmp_path / "tls", "relay.example")
    elsewhere = ("--data-dir", str(tmp_path / "other"))
    named = ("--listen", "0.0.0.0:0", "--hosts", "relay.example", "--tls-cert", str(certificate.cert))
    started = cli("relay", "up", "--detach", *named, "--tls-key", str(certificate.key), *elsewhere)
    assert started.exit == Exit.OK, started.err
    try:
        assert f"posthouse relay down --data-dir {tmp_path / 'other'}" in started.err
        assert cli("relay", "status", *elsewhere, "--json").value["health"] == "ok"
    finally:
        cli("relay", "down", *elsewhere)


def test_a_relay_that_cannot_start_in_the_background_says_why(cli: CommandLine) -> None:
    refused = cli("relay", "up", "--detach", "--listen", "0.0.0.0:0", "--json")
    assert refused.exit != Exit.OK
    assert refused.problem["code"] == "listen_unprotected"


def test_sighup_applies_settings_and_names_those_that_need_a_restart(relay: CommandLine) -> None:
    log, pid = relay.home / "relay" / "relay.log", relay("relay", "status", "--json").value["pid"]
    (relay.home / "config.toml").write_text('[relay]\nevent_rate = 7\nqueue_max = 5\n[log]\nlevel = "debug"\n')
    os.kill(pid, signal.SIGHUP)
    eventually(lambda: "settings_reloaded" in log.read_text())
    text = log.read_text()
    assert '"setting": "relay.event_rate", "before": 1000, "after": 7, "event": "setting_changed"' in text
    assert '"setting": "log.level", "before": "info", "after": "debug", "event": "setting_changed"' in text
    assert '"setting": "relay.queue_max", "running": 1000, "configured": 5, "event": "setting_needs_restart"' in text


def test_sighup_with_a_broken_file_changes_nothing_and_the_relay_lives(relay: CommandLine) -> None:
    log, pid = relay.home / "relay" / "relay.log", relay("relay", "status", "--json").value["pid"]
    (relay.home / "config.toml").write_text("[relay]\nevent_rate = 'fast'\n")
    os.kill(pid, signal.SIGHUP)
    eventually(lambda: "settings_not_reloaded" in log.read_text())
    (relay.home / "config.toml").unlink()
    assert relay("relay", "status", "--json").value["health"] == "ok"


def test_the_unit_of_a_relay_is_one_that_systemd_accepts(
    cli: CommandLine, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = cli("relay", "install-service", "--data-dir", "odd dir", "--event-rate", "9", "--json").value
    unit = Path(answer["path"])
    assert unit == config / "systemd" / "user" / "posthouse-relay.service"
    lines = unit.read_text().splitlines()
    assert {"Type=notify", "WatchdogSec=30", "ExecReload=/bin/kill -HUP $MAINPID", "Restart=always"} <= set(lines)
    [start] = [line for line in lines if line.startswith("ExecStart=")]
    assert start.endswith(f'"relay" "up" "--data-dir" "{Path("odd dir").absolute()}" "--event-rate" "9"')
    verify(unit)
    assert cli("relay", "uninstall-service", "--json").value["removed"] is True
    assert not unit.exists()


def test_a_service_with_a_setting_that_is_wrong_is_refused(cli: CommandLine, config: Path) -> None:
    refused = cli("relay", "install-service", "--listen", "nowhere", "--json")
    assert refused.problem["code"] == "listen_invalid"
    assert not config.exists()
