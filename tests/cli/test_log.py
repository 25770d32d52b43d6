from __future__ import annotations

import json
import logging
import os
import re
import stat
from pathlib import Path

import pytest
import structlog

from posthouse.cli.config import load_settings
from posthouse.cli.log import KEPT, LogFile, log_to_file, log_to_stderr
from posthouse.cli.options import parse_duration, parse_wait
from posthouse.model.errors import PosthouseError


def write(log: LogFile, line: str) -> None:
    log.handle(logging.makeLogRecord({"msg": line}))


def test_full_log_is_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "daemon.log", max_bytes=10)
    for number in range(KEPT + 3):
        write(log, f"line {number}")
    log.close()
    names = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert names == {
        "daemon.log": "line 5\n",
        "daemon.log.1": "line 4\n",
        "daemon.log.2": "line 3\n",
        "daemon.log.3": "line 2\n",
    }


def test_log_continues_after_a_restart_and_a_line_longer_than_a_file_stays_whole(tmp_path: Path) -> None:
    first = LogFile(tmp_path / "daemon.log", max_bytes=20)
    write(first, "before")
    first.close()
    second = LogFile(tmp_path / "daemon.log", max_bytes=20)
    write(second, "after")
    assert (tmp_path / "daemon.log").read_text() == "before\nafter\n"
    write(second, "x" * 50)
    second.close()
    assert (tmp_path / "daemon.log").read_text() == "x" * 50 + "\n"
    assert stat.S_IMODE((tmp_path / "daemon.log").stat().st_mode) == 0o600


def test_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "daemon.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PosthouseError) as caught:
        LogFile(tmp_path / "daemon.log")
    assert caught.value.code == "store_path_unsafe"


def test_entries_of_the_level_and_above_are_json_lines_without_local_values(tmp_path: Path) -> None:
    before = structlog.get_config()
    log = LogFile(tmp_path / "daemon.log")
    try:
        log_to_file(log, load_settings({"log.level": "info"}, {"POSTHOUSE_HOME": str(tmp_path)}))
        structlog.get_logger().debug("hidden")
        structlog.get_logger().info("shown", percent="100 %s")
        fail_with_a_secret()
    finally:
        structlog.configure(**before)
        log.close()
    shown, failed = [json.loads(line) for line in (tmp_path / "daemon.log").read_text().splitlines()]
    assert (shown["event"], shown["level"], shown["percent"]) == ("shown", "info", "100 %s")
    assert failed["exception"][0]["exc_type"] == "ValueError"
    assert "swordfish" not in (tmp_path / "daemon.log").read_text()


@pytest.mark.parametrize("style", ["text", "json"])
def test_text_of_other_nodes_can_neither_drive_the_terminal_nor_forge_an_entry(
    style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = structlog.get_config()
    hostile = "x\n2026-01-01 [info] forged\x1b[2J\x9b1m"
    try:
        log_to_stderr(load_settings({"log.format": style}, {"POSTHOUSE_HOME": str(tmp_path)}))
        structlog.get_logger().info("refused", path=hostile, reasons=[hostile])
        try:
            raise ValueError(hostile)
        except ValueError:
            structlog.get_logger().exception("failed")
    finally:
        structlog.configure(**before)
    lines = capsys.readouterr().err.splitlines()
    assert not any(line.startswith("2026-01-01 [info] forged") for line in lines)
    colourless = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]  # the renderer's own colours
    assert all(line.isprintable() for line in colourless)


def fail_with_a_secret() -> None:
    password = "".join(("sword", "fish"))
    try:
        raise ValueError(len(password))
    except ValueError:
        structlog.get_logger().exception("failed")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400)])
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == parse_wait(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "2.5h", "0s", "2 h", "2w", "٢h"])
def test_other_durations_are_usage_errors(text: str) -> None:
    with pytest.raises(PosthouseError) as caught:
        parse_duration(text)
    assert caught.value.code == "usage"


def test_log_on_a_full_disk_never_raises_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    log = LogFile(small_disk / "daemon.log", max_bytes=30_000)
    write(log, "before")
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space"):
        ballast.write_bytes(b"x" * 4_000_000)
    for number in range(40):  # more than the file's buffer, and more than one rotation
        write(log, f"{number} " + "x" * 2_000)
    ballast.unlink()
    write(log, "after")
    log.close()
    assert (small_disk / "daemon.log").read_text().splitlines()[-1] == "after"


def test_closing_a_log_on_a_full_disk_does_not_raise(small_disk: Path) -> None:
    log = LogFile(small_disk / "daemon.log")
    with pytest.raises(OSError, match="No space"):
        (small_disk / "ballast").write_bytes(b"x" * 4_000_000)
    write(log, "x" * 100)
    log.close()


@pytest.mark.parametrize("style", ["text", "json"])
def test_log_on_a_closed_stream_does_not_raise(style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as stream:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr("sys.stderr", stream)
        log_to_stderr(load_settings({"log.format": style}, {"POSTHOUSE_HOME": str(tmp_path)}))
        structlog.get_logger().info("into a broken pipe")
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # so that closing it can flush
