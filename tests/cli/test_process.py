"""What only a real process shows: start-up cost, pipes, signals, colours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-m", "posthouse.cli.main"]
HEAVY = {"apsw", "nacl", "aiohttp", "uvloop", "rich", "msgspec", "structlog", "cryptography", "asyncio"}


def environment(home: Path, **extra: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**kept, "HOME": str(home), **extra}


def test_version_loads_no_library_it_does_not_need(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from posthouse.cli.main import main\n"
        "try:\n"
        "    main(['version'])\n"
        "finally:\n"
        "    sys.stderr.write(' '.join(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path), timeout=60
    )
    assert done.stdout.startswith("posthouse ")
    assert HEAVY & set(done.stderr.split()) == set()


def test_help_loads_no_library_of_an_extra(tmp_path: Path) -> None:
    code = "import sys; from posthouse.cli.commands import build; build(eager=True); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path), timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (HEAVY - {"asyncio", "msgspec"}) & set(done.stdout.split()) == set()


def test_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        done = subprocess.run(
            [*COMMAND, "completion", "bash"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            env=environment(tmp_path),
            timeout=60,
        )
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == b""


def test_interrupt_ends_the_process_with_130_and_no_traceback(tmp_path: Path) -> None:
    code = (
        "import signal, os\n"
        "from posthouse.cli.exit_codes import run_to_exit_code\n"
        "import sys\n"
        "sys.exit(run_to_exit_code(lambda tokens: os.kill(os.getpid(), signal.SIGINT) or signal.pause(), []))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment(tmp_path), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_no_color_keeps_the_help_free_of_colours(tmp_path: Path) -> None:
    env = environment(tmp_path, NO_COLOR="1", FORCE_COLOR="1", TERM="xterm-256color")
    done = subprocess.run([*COMMAND, "doctor"], capture_output=True, text=True, env=env, timeout=60)
    assert "\x1b[32m" not in done.stdout
    assert "python" in done.stdout
    coloured = subprocess.run(
        [*COMMAND, "doctor"],
        capture_output=True,
        text=True,
        env={name: value for name, value in env.items() if name != "NO_COLOR"},
        timeout=60,
    )
    assert "\x1b[32m" in coloured.stdout


def test_home_without_any_variable_is_in_the_home_of_the_user(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "keys", "new"], capture_output=True, env=environment(tmp_path), timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ".posthouse" / "key.json").stat().st_mode & 0o777 == 0o600
