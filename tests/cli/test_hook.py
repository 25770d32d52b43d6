"""`posthouse hook` as a process, against a socket that answers as a daemon does, late, wrongly or not at all."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.answering import answering, daemon_of, environment, ok

COMMAND = [sys.executable, "-m", "posthouse.cli.main", "hook"]
QUIET = (0, b"", b"")


def run_hook(home: Path, *words: str, stdin: bytes = b"{}", env: Mapping[str, str] | None = None) -> Any:
    done = subprocess.run(
        [*COMMAND, *words], input=stdin, capture_output=True, env=environment(home, **(env or {})), timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_hook_is_silent_without_a_daemon(tmp_path: Path) -> None:
    assert run_hook(tmp_path, "claude-code", "prompt") == QUIET
    daemon_of(tmp_path).mkdir(parents=True)
    assert run_hook(tmp_path, "claude-code", "prompt") == QUIET
    with answering(daemon_of(tmp_path), b""):
        pass
    assert run_hook(tmp_path, "claude-code", "prompt") == QUIET  # a socket that no process listens on


@pytest.mark.parametrize("answer", [b"", b"nonsense", b"HTTP/1.1 503 Busy\r\n\r\nx", b"HTTP/1.1 404 No\r\n\r\nx", None])
def test_hook_is_silent_if_the_daemon_answers_badly_or_not(tmp_path: Path, answer: bytes | None) -> None:
    with answering(daemon_of(tmp_path), answer) as daemon:
        assert run_hook(tmp_path, "claude-code", "prompt") == QUIET
        assert len(daemon.asked) == 1


def test_hook_ends_though_its_input_never_does(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    try:
        done = subprocess.run(
            [*COMMAND, "claude-code", "tool"],
            stdin=read_end,
            capture_output=True,
            env=environment(tmp_path),
            timeout=60,
        )
    finally:
        os.close(read_end)
        os.close(write_end)
    assert (done.returncode, done.stdout, done.stderr) == QUIET


def test_hook_sends_its_input_and_prints_the_answer(tmp_path: Path) -> None:
    with answering(daemon_of(tmp_path), ok('{"x": "é"}')) as daemon:
        given = b'{"session_id": "s"}'
        env = {"POSTHOUSE_AGENT": "claude-2"}
        assert run_hook(tmp_path, "claude-code", "prompt", stdin=given, env=env) == (0, '{"x": "é"}'.encode(), b"")
    head, _, body = daemon.asked[0].partition(b"\r\n\r\n")
    assert head.startswith(f"POST /v1/hooks/claude-code/prompt?as=claude-2&pid={os.getpid()} HTTP/1.1\r\n".encode())
    assert body == given


def test_exit_code_of_the_daemon_sends_the_text_to_stderr(tmp_path: Path) -> None:
    with answering(daemon_of(tmp_path), ok("2 messages wait", Posthouse_Exit="2")):
        assert run_hook(tmp_path, "claude-code", "prompt") == (2, b"", b"2 messages wait")


def test_hook_finds_the_daemon_of_an_option_and_of_a_deep_home(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with short_way(deep) as directory, answering(directory, ok("deep")):
        assert run_hook(tmp_path, "codex", "prompt", "--dir", str(deep)) == (0, b"deep", b"")
        assert run_hook(tmp_path, "codex", "prompt", f"--dir={deep}", "--as=x") == (0, b"deep", b"")


@contextmanager
def short_way(deep: Path) -> Iterator[Path]:
    deep.mkdir(parents=True)
    here = os.open(deep, os.O_RDONLY)
    try:
        yield Path(f"/proc/self/fd/{here}")
    finally:
        os.close(here)


def test_large_tool_results_stay_with_the_hook(tmp_path: Path) -> None:
    given = {
        "session_id": "s",
        "agent_id": "a1",
        "tool_input": {"file_path": "/x", "content": "c" * 100_000},
        "tool_response": {"stdout": "r" * 5_000_000},
    }
    with answering(daemon_of(tmp_path), ok()) as daemon:
        assert run_hook(tmp_path, "claude-code", "tool", stdin=json.dumps(given).encode()) == QUIET
    sent = json.loads(daemon.asked[0].partition(b"\r\n\r\n")[2])
    assert sent == {"session_id": "s", "agent_id": "a1", "tool_input": {"file_path": "/x"}}


@pytest.mark.parametrize("given", [b"[" * 1_000_000, b"x" * 100_000, b"[1" + b",1" * 100_000 + b"]"])
def test_large_input_that_is_no_object_reaches_no_daemon(tmp_path: Path, given: bytes) -> None:
    with answering(daemon_of(tmp_path), ok("x")) as daemon:
        assert run_hook(tmp_path, "claude-code", "tool", stdin=given) == QUIET
    assert daemon.asked == []


def test_name_of_the_agent_is_kept_for_the_commands_of_the_session(tmp_path: Path) -> None:
    kept = tmp_path / "env"
    with answering(daemon_of(tmp_path), ok("{}", Posthouse_Agent="claude-2")):
        run_hook(tmp_path, "claude-code", "session-start", env={"CLAUDE_ENV_FILE": str(kept)})
    assert kept.read_text() == "export POSTHOUSE_AGENT=claude-2\n"


def test_words_that_are_no_hook_reach_no_daemon(tmp_path: Path) -> None:
    with answering(daemon_of(tmp_path), ok("x")) as daemon:
        assert run_hook(tmp_path, "claude-code", "../inbox") == QUIET
        assert run_hook(tmp_path, "claude-code", "prompt", "--as", "x y") == QUIET
        assert run_hook(tmp_path)[0] == 2
    assert daemon.asked == []


def test_hook_loads_socket_and_nothing_heavier(tmp_path: Path) -> None:
    code = (
        "import sys, socket\n"
        "known = set(sys.modules)\n"
        "from posthouse.cli.main import main\n"
        "try: main(['hook', 'claude-code', 'prompt'])\n"
        "finally: print(*set(sys.modules) - known)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"{}", capture_output=True, env=environment(tmp_path), timeout=60
    )
    assert {name for name in done.stdout.split() if not name.startswith(b"posthouse")} == {b"__future__", b"gc"}


# waiting


def waiter(home: Path, program: str = "claude-code", **env: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, program, "wait"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home, **env),
    )


def outcome(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("env", [{}, {"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}])
def test_waiter_of_a_session_without_a_terminal_ends_at_once(tmp_path: Path, env: dict[str, str]) -> None:
    with answering(daemon_of(tmp_path), None) as daemon:
        assert outcome(waiter(tmp_path, **env)) == QUIET
    assert daemon.asked == []


def test_waiter_wakes_the_program_with_the_daemon_s_exit_code(tmp_path: Path) -> None:
    with answering(daemon_of(tmp_path), ok("1 message waits", Posthouse_Exit="2")):
        assert outcome(waiter(tmp_path, CLAUDE_CODE_ENTRYPOINT="cli")) == (2, b"", b"1 message waits")


def test_waiter_outlives_a_restart_of_the_daemon(tmp_path: Path) -> None:
    with answering(daemon_of(tmp_path), None) as first:
        process = waiter(tmp_path, CLAUDE_CODE_ENTRYPOINT="cli")
        first.wait_for_request()
    with answering(daemon_of(tmp_path), ok("mail", Posthouse_Exit="2")):
        assert outcome(process) == (2, b"", b"mail")


@pytest.mark.parametrize("answer", [None, b""], ids=["the daemon runs", "the daemon is down"])
def test_waiter_ends_with_the_program_that_started_it(tmp_path: Path, answer: bytes | None) -> None:
    started = f"import subprocess, time; subprocess.Popen({[*COMMAND, 'claude-code', 'wait']!r}); time.sleep(600)"
    read_end, write_end = os.pipe()
    with answering(daemon_of(tmp_path), answer) as daemon:
        program = subprocess.Popen(
            [sys.executable, "-c", started],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            env=environment(tmp_path, CLAUDE_CODE_ENTRYPOINT="cli"),
        )
        os.close(write_end)
        daemon.wait_for_request()
        program.kill()
        program.wait(10)
        assert select.select([read_end], [], [], 60)[0] and os.read(read_end, 1) == b""  # no process has its stdout
    os.close(read_end)
