"""What only a real process shows: start-up cost, pipes, signals, colours."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from posthouse.cli.detach import stop_process

BOUND_S = 240  # ends a command that hangs; a busy machine takes its time
COMMAND = [sys.executable, "-m", "posthouse.cli.main"]
HEAVY = {"apsw", "nacl", "aiohttp", "uvloop", "rich", "msgspec", "structlog", "cryptography", "asyncio"}


def environment(home: Path, **extra: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": str(home), **extra}


def test_help_of_every_command_loads_no_library_of_an_extra(tmp_path: Path) -> None:
    code = "import sys; from posthouse.cli.commands import build; build().resolved_commands(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path), timeout=BOUND_S
    )
    assert done.returncode == 0, done.stderr
    assert (HEAVY - {"asyncio", "msgspec"}) & set(done.stdout.split()) == set()


@pytest.mark.parametrize("words", [("version",), ("config",), ("config", "--json"), ("--help",)])
def test_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path, words: tuple[str, ...]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        done = subprocess.run(
            [*COMMAND, *words], stdout=pipe, stderr=subprocess.PIPE, env=environment(tmp_path), timeout=BOUND_S
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_interrupt_ends_the_process_with_130_and_no_traceback(tmp_path: Path) -> None:
    code = (
        "import signal, os\n"
        "from posthouse.cli.exit_codes import run_to_exit_code\n"
        "import sys\n"
        "sys.exit(run_to_exit_code(lambda tokens: os.kill(os.getpid(), signal.SIGINT) or signal.pause(), []))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(tmp_path), timeout=BOUND_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def takes_interrupts(pid: int) -> bool:
    """Return True if a process has a handler for Ctrl-C."""
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.parametrize(
    ("words", "codes"),
    [(("send", "bob", "-"), {130}), (("mcp",), {0, 130})],  # the pipe ends as if its input did, once it serves
    ids=["send", "mcp"],
)
def test_interrupt_ends_a_command_whose_parent_ignores_interrupts(
    tmp_path: Path, words: tuple[str, ...], codes: set[int]
) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a child inherits this
    process = subprocess.Popen(
        [*COMMAND, *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path)
    )
    signal.signal(signal.SIGINT, before)
    with process:
        while not takes_interrupts(process.pid):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.wait(BOUND_S)
        assert process.stderr is not None
        assert (process.returncode in codes, process.stderr.read()) == (True, b"")


@pytest.mark.parametrize("words", [("config",), ("--help",), (), ("version",), ("config", "--output", "csv")])
def test_full_disk_below_the_output_is_reported_and_nothing_else(tmp_path: Path, words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path),
            timeout=BOUND_S,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output could not be written: No space left on device\nhint: ")
    assert len(done.stderr.splitlines()) == 2


def test_full_disk_below_the_errors_leaves_the_exit_code(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, "nonsense"], stdout=full, stderr=full, env=environment(tmp_path), timeout=BOUND_S
        )
    assert done.returncode == 2


def test_command_without_streams_works_and_gives_their_numbers_to_no_store(tmp_path: Path) -> None:
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    environ = environment(tmp_path)
    for words in (
        ("version",),
        ("--help",),
        ("keys", "new"),
        ("bus", "endpoints", "add", "agents.a"),
        ("bus", "pub", "agents.a", "--text", "hi"),
    ):
        assert subprocess.run([*closed, *COMMAND, *words], env=environ, timeout=BOUND_S).returncode == 0
    shown = subprocess.run([*COMMAND, "bus", "inbox", "agents.a"], capture_output=True, env=environ, timeout=BOUND_S)
    assert b"hi" in shown.stdout


def test_no_color_keeps_the_help_free_of_colours(tmp_path: Path) -> None:
    env = environment(tmp_path, NO_COLOR="1", FORCE_COLOR="1", TERM="xterm-256color")
    done = subprocess.run([*COMMAND, "doctor"], capture_output=True, text=True, env=env, timeout=BOUND_S)
    assert "\x1b[32m" not in done.stdout
    assert "python" in done.stdout
    coloured = subprocess.run(
        [*COMMAND, "doctor"],
        capture_output=True,
        text=True,
        env={name: value for name, value in env.items() if name != "NO_COLOR"},
        timeout=BOUND_S,
    )
    assert "\x1b[32m" in coloured.stdout


def test_home_without_any_variable_is_in_the_home_of_the_user(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "keys", "new"], capture_output=True, env=environment(tmp_path), timeout=BOUND_S)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".posthouse" / "key.json").stat().st_mode & 0o777 == 0o600


def test_process_is_stopped_and_awaited_on_a_system_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    process = subprocess.Popen(["sleep", "600"])
    reaped = threading.Thread(target=process.wait)
    reaped.start()
    stop_process(process.pid, slow="daemon_stop_slow")
    reaped.join(BOUND_S)
    assert process.returncode == -signal.SIGTERM
