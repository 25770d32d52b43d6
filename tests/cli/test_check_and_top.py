"""`posthouse check` and `posthouse top`: what they say of real processes, to a monitoring system and on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.faults.relay_process import RelayProcess

pytestmark = pytest.mark.xdist_group("cli-relay")
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60
PERFORMANCE = re.compile(r"[a-z_]+=[0-9.]+(s|B)?;([0-9.]+:?)?;([0-9.]+:?)?;0")


@pytest.fixture
def relay(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RelayProcess]:
    """A running relay that the key of this home administers."""
    cli("keys", "new")
    with RelayProcess(tmp_path, home=cli.home) as running:
        monkeypatch.setenv("POSTHOUSE_CLIENT_RELAY", running.url)
        yield running


def test_check_says_in_one_line_how_a_relay_is(cli: CommandLine, relay: RelayProcess) -> None:
    quiet = (
        "--warn",
        "disk_free=off",
        "--critical",
        "disk_free=off",
        "--warn",
        "answer=off",
        "--critical",
        "answer=off",
    )
    good = cli("check", "relay", *quiet)
    assert good.exit == 0 and good.out.count("\n") == 1 and good.out.startswith("RELAY OK - answer ")
    _text, _, performance = good.out.strip().partition(" | ")
    values = performance.split(" ")
    assert all(PERFORMANCE.fullmatch(each) for each in values), values
    assert {each.partition("=")[0] for each in values} >= {"answer", "oldest", "queued", "dead", "disk_free", "sweep"}
    warned = cli("check", "relay", *quiet, "--warn", "connections=0")
    assert warned.exit == 1 and warned.out.startswith("RELAY WARNING - connections is ")
    bad = cli("check", "relay", *quiet, "--warn", "connections=0", "--critical", "disk_free=9000T", "--json")
    assert (bad.exit, bad.value["state"], bad.value["code"]) == (2, "critical", 2)
    assert "disk_free" in bad.value["problems"][0] and "connections" in bad.value["problems"][1]
    states = {each["name"]: each["state"] for each in bad.value["measures"]}
    assert (states["disk_free"], states["connections"], states["dead"]) == ("critical", "warning", "ok")


def test_a_relay_that_does_not_answer_is_critical_and_one_that_tells_nothing_unknown(
    cli: CommandLine, relay: RelayProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = cli("check", "relay", "--relay", "http://127.0.0.1:9")
    assert away.exit == 2 and away.out.startswith("RELAY CRITICAL - ") and "|" not in away.out
    stranger = tmp_path / "stranger.json"
    cli("keys", "new", "--key-file", str(stranger))
    untold = cli("check", "relay", "--key-file", str(stranger))
    assert untold.exit == 3 and untold.out.startswith("RELAY UNKNOWN - ")
    token = tmp_path / "token"
    token.write_text("wrong-token-0123456789")
    assert cli("check", "relay", "--token-file", str(token)).exit == 3
    monkeypatch.setenv("POSTHOUSE_HOME", str(tmp_path / "empty"))
    assert cli("check", "relay", "--relay", relay.url).exit == 3, "without a key nothing can be read"


@pytest.mark.parametrize(
    "words",
    [
        ("relay", "--warn", "oldest"),
        ("relay", "--warn", "unheard=1"),
        ("relay", "--critical", "oldest=3G"),
        ("daemon", "--warn", "outbox=5m"),
        ("relay", "--warn"),
        ("relay", "--nonsense"),
        ("relay", "--timeout", "0"),
    ],
)
def test_a_check_that_is_written_wrong_is_unknown_and_never_critical(cli: CommandLine, words: tuple[str, ...]) -> None:
    assert cli("check", *words).exit == 3


def test_a_daemon_that_does_not_run_is_critical(cli: CommandLine) -> None:
    said = cli("check", "daemon", "--json")
    assert (said.exit, said.value["state"]) == (2, "critical")


def test_top_shows_the_rates_of_one_interval(cli: CommandLine, relay: RelayProcess) -> None:
    value = cli("top", "--once", "--interval", "0.2", "--json").value
    assert value["relay"]["where"] == relay.url and value["relay"]["error"] is None
    assert value["relay"]["values"]["connections"] >= 1 and value["relay"]["rates"]["requests"] > 0
    assert set(value["relay"]["rates"]) == {"accepted", "delivered", "live", "refused", "requests", "commits"}
    assert value["daemon"]["error"] == "daemon_unreachable"
    shown = cli("top", "--once", "--interval", "0.1").out
    assert relay.url in shown and "connections" in shown and "\x1b" not in shown


@pytest.mark.parametrize("end", ["q", "interrupt", "terminate"])
def test_top_on_a_terminal_ends_cleanly_and_brings_the_screen_back(
    cli: CommandLine, relay: RelayProcess, end: str
) -> None:
    terminal, child_side = pty.openpty()
    before = termios.tcgetattr(child_side)
    process = subprocess.Popen(
        [sys.executable, "-m", "posthouse.cli.main", "top", "--interval", "0.1"],
        stdin=child_side, stdout=child_side, stderr=child_side, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        preexec_fn=lambda: _control(child_side),
    )  # fmt: skip
    try:
        shown = _read_until(terminal, b"q ends")
        assert b"\x1b[?1049h" in shown and b"connections" in shown
        if end == "q":
            os.write(terminal, b"q")
        elif end == "interrupt":
            os.write(terminal, b"\x03")
        else:
            process.send_signal(signal.SIGTERM)
        rest = _read_until(terminal, b"\x1b[?25h")
        assert b"\x1b[?1049l" in rest and b"Traceback" not in rest
        assert process.wait(PATIENCE_S) == 0
        assert termios.tcgetattr(child_side)[3] == before[3], "echo and line mode are back"
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(child_side)


def _control(side: int) -> None:
    """Make the terminal the one that controls this process, so that Ctrl-C becomes a signal."""
    import fcntl

    fcntl.ioctl(side, termios.TIOCSCTTY, 0)


def _read_until(terminal: int, words: bytes) -> bytes:
    found, until_s = b"", time.monotonic() + PATIENCE_S
    while words not in found:
        assert time.monotonic() < until_s, found[-2_000:]
        if select.select([terminal], [], [], 0.5)[0]:
            found += os.read(terminal, 65_536)
    return found
