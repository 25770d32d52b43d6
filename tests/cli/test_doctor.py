from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from posthouse.cli import doctor
from posthouse.cli.config import Home
from posthouse.sqlite import connection
from tests.cli.command_line import CommandLine, Outcome


def checks(outcome: Outcome) -> dict[str, Any]:
    return {check["name"]: check for check in outcome.value["checks"]}


def test_fresh_machine_is_healthy_and_gets_a_hint_to_create_a_key(cli: CommandLine) -> None:
    outcome = cli("doctor", "--json")
    found = checks(outcome)
    assert (outcome.exit, outcome.value["healthy"]) == (0, True)
    assert found["key"]["state"] == "warn"
    assert "posthouse up" in found["key"]["hint"]
    assert found["sqlite"]["state"] == "ok"


def test_changed_settings_are_counted_without_naming_a_file_that_does_not_exist(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTHOUSE_JOURNAL_KEEP_DAYS", "3")
    text = checks(cli("doctor", "--json"))["settings"]["text"]
    assert "posthouse config" in text and "config.toml" not in text


def test_looking_makes_nothing(cli: CommandLine) -> None:
    cli("doctor")
    assert not cli.home.exists()


def test_key_that_others_can_read_fails(cli: CommandLine) -> None:
    cli("keys", "new")
    (cli.home / "key.json").chmod(0o644)
    outcome = cli("doctor", "--json")
    found = checks(outcome)
    assert (outcome.exit, outcome.value["healthy"]) == (1, False)
    assert found["key"]["state"] == "fail"
    assert "chmod 600" in found["key"]["hint"]
    assert found["files"]["state"] == "fail"
    assert "key.json" in found["files"]["text"]


def test_home_that_others_can_enter_fails(cli: CommandLine) -> None:
    cli("keys", "new")
    cli.home.chmod(0o755)
    outcome = cli("doctor", "--json")
    assert outcome.exit == 1
    assert checks(outcome)["home"]["state"] == "fail"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_home_that_this_user_may_not_write_fails(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    for home, reason in ((closed / "home", "cannot be created"), (closed, "cannot be written")):
        monkeypatch.setenv("POSTHOUSE_HOME", str(home))
        found = checks(cli("doctor", "--json"))["home"]
        assert (found["state"], reason in found["text"]) == ("fail", True), found


def test_home_on_a_read_only_file_system_fails(
    cli: CommandLine, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for home in (small_disk / "home", small_disk):
        monkeypatch.setenv("POSTHOUSE_HOME", str(home))
        assert checks(cli("doctor", "--json"))["home"]["state"] == "ok"
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for home, reason in ((small_disk / "home", "cannot be created"), (small_disk, "cannot be written")):
        monkeypatch.setenv("POSTHOUSE_HOME", str(home))
        found = checks(cli("doctor", "--json"))["home"]
        assert (found["state"], reason in found["text"]) == ("fail", True), found


def test_home_that_is_a_symbolic_link_fails(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    cli.home.symlink_to(tmp_path / "elsewhere")
    assert checks(cli("doctor", "--json"))["home"]["state"] == "fail"


def test_damaged_key_fails(cli: CommandLine) -> None:
    cli("keys", "new")
    key = cli.home / "key.json"
    key.write_text(key.read_text().replace('"seed":"', '"seed":"00'))
    assert checks(cli("doctor", "--json"))["key"]["state"] == "fail"


def test_stepped_clock_is_shown(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = tmp_path / "clock.json"
    offsets.write_text(json.dumps({"wall_offset_ns": 3_600_000_000_000, "boot_offset_ns": 0}))
    monkeypatch.setenv("POSTHOUSE_TEST_CLOCK", str(offsets))
    clock = checks(cli("doctor", "--json"))["clock"]
    assert clock["state"] == "warn"
    assert "wall +3600 s, boot +0 s" in clock["text"]


def test_sqlite_with_the_wal_corruption_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "library_version", lambda: (3, 51, 2))
    assert doctor.check_sqlite().state == "fail"


def test_little_free_disk_space_is_a_warning_and_none_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "not" / "there")
    assert doctor.check_disk(home).text.endswith(str(tmp_path))
    monkeypatch.setattr(doctor, "_LOW_DISK", 1 << 62)
    assert doctor.check_disk(home).state == "warn"
    monkeypatch.setattr(doctor, "_NO_DISK", 1 << 62)
    assert doctor.check_disk(home).state == "fail"


def test_low_inotify_limits_come_with_the_command_that_raises_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "max_user_watches").write_text("10\n")
    monkeypatch.setattr(doctor, "_INOTIFY", tmp_path)
    watches, instances = doctor.check_inotify()
    assert watches.state == "warn"
    assert "sysctl fs.inotify.max_user_watches=8192" in watches.hint
    assert instances.text == "unknown"


def test_file_that_the_doctor_cannot_read_is_a_finding(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(home: Home) -> None:
        raise PermissionError(13, "Permission denied")

    denied.__name__ = "check_disk"
    monkeypatch.setattr(doctor, "HOME_CHECKS", (denied,))
    outcome = cli("doctor", "--json")
    assert outcome.exit == 1
    assert checks(outcome)["disk"]["state"] == "fail"


def test_report_for_people_names_state_check_and_hint(cli: CommandLine) -> None:
    out = cli("doctor").out
    line = next(line for line in out.splitlines() if " key " in line)
    assert line.startswith("warn")
    assert "Run `posthouse up`" in line


def test_variable_that_is_no_setting_is_named_with_a_suggestion(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checks(cli("doctor", "--json"))["environment"]["state"] == "ok"
    monkeypatch.setenv("POSTHOUSE_RELAY_QUEU_MAX", "3")
    found = checks(cli("doctor", "--json"))["environment"]
    assert (found["state"], found["hint"]) == ("warn", "Did you mean POSTHOUSE_RELAY_QUEUE_MAX?")


def test_settings_file_may_be_readable_but_not_writable_by_others(cli: CommandLine) -> None:
    cli.home.mkdir(mode=0o700)
    config = cli.home / "config.toml"
    config.touch()
    config.chmod(0o644)
    assert checks(cli("doctor", "--json"))["files"]["state"] == "ok"
    config.chmod(0o664)
    assert checks(cli("doctor", "--json"))["files"]["state"] == "fail"


@pytest.mark.parametrize(
    ("name", "text"),
    [("access-rules.json", "{broken"), ("config.json", '{"reliability": {"rateLimit": {"maxPerWindow": -1}}}')],
)
def test_broken_file_of_the_bus_fails(cli: CommandLine, name: str, text: str) -> None:
    bus = cli.home / "bus"
    bus.mkdir(mode=0o700, parents=True)
    cli.home.chmod(0o700)
    (bus / name).write_text(text)
    (bus / name).chmod(0o600)
    outcome = cli("doctor", "--json")
    found = checks(outcome)["bus files"]
    assert (outcome.exit, found["state"]) == (1, "fail")
    assert name in found["text"]
    assert found["hint"]
    (bus / name).unlink()
    assert checks(cli("doctor", "--json"))["bus files"]["state"] == "ok"


def test_inotify_instances_near_their_limit_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "max_user_instances").write_text("10")
    monkeypatch.setattr(doctor, "_INOTIFY", tmp_path)
    for used, state in ((7, "ok"), (8, "warn")):
        monkeypatch.setattr(doctor, "_inotify_instances", lambda used=used: used)
        assert doctor.check_inotify_use().state == state
