"""Commands that answer before the command line is loaded: what they import, and that nothing gets lost or doubled."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from posthouse.model.codes.spec import Exit
from posthouse.version import __version__
from tests.cli.answering import answering, daemon_of, environment, ok

COMMAND = [sys.executable, "-m", "posthouse.cli.main"]
HEAVY = {"asyncio", "aiohttp", "cyclopts", "msgspec", "nacl", "structlog", "typing", "http", "pathlib", "rich"}
ACCEPTED = ok('{"client_message_id": "abc", "status": "queued"}').replace(b"200 OK", b"202 Accepted")


def run_command(home: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, env=environment(home, **env), timeout=60, check=False
    )


def imports_of(home: Path, *words: str, exit_code: int = 0) -> set[str]:
    """Return the packages that a command imports, beyond those of the interpreter."""
    code = (
        "import sys\n"
        "known = set(sys.modules)\n"
        "from posthouse.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: sys.stderr.write('\\n' + ' '.join(set(sys.modules) - known))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment(home), timeout=60
    )
    assert done.returncode == exit_code, done.stderr
    return {name.partition(".")[0] for name in done.stderr.splitlines()[-1].split()}


def bodies(asked: list[bytes]) -> list[dict[str, str]]:
    return [json.loads(each.partition(b"\r\n\r\n")[2]) for each in asked if each.startswith(b"POST /v1/send ")]


@pytest.mark.parametrize("word", ["version", "--version"])
def test_version_imports_no_library(tmp_path: Path, word: str) -> None:
    assert imports_of(tmp_path, word) == {"__future__", "gc", "posthouse"}
    done = run_command(tmp_path, word)
    assert done.stdout == f"posthouse {__version__} (Python {sys.version.split()[0]})\n"


@pytest.mark.parametrize("words", [("--help",), ("-h",), ()])
def test_list_of_commands_imports_no_library_and_no_command(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert imports_of(tmp_path, *words) & HEAVY == set()
    done = run_command(tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Start here\n  up " in done.stdout


def test_send_imports_json_and_socket_and_nothing_heavier(tmp_path: Path) -> None:
    with answering(daemon_of(tmp_path), ACCEPTED):
        found = imports_of(tmp_path, "send", "bob", "hello")
    assert {"json", "socket", "posthouse"} <= found
    assert found & HEAVY == set()


def test_send_without_a_daemon_imports_no_store_no_log_and_no_renderer(tmp_path: Path) -> None:
    assert run_command(tmp_path, "keys", "new").returncode == 0
    unused = {"apsw", "jinja2", "prometheus_client", "pygments", "rich", "structlog", "tomlkit", "uvloop"}
    unused |= {"difflib", "plistlib", "pyrage", "smtplib", "zoneinfo"}
    found = imports_of(tmp_path, "send", "bob", "hello", "--relay", "http://127.0.0.1:9", exit_code=Exit.UNREACHABLE)
    assert {"aiohttp", "nacl"} <= found
    assert found & unused == set()


def test_send_hands_recipient_text_and_options_to_the_daemon(tmp_path: Path) -> None:
    with answering(daemon_of(tmp_path), ACCEPTED) as daemon:
        done = run_command(tmp_path, "send", "bob", "grüße", "--priority=now", "--agent", "eve", "--id", "abc")
    assert (done.returncode, done.stdout, done.stderr) == (0, "abc  queued\n", "")
    assert bodies(daemon.asked) == [{"to": "bob", "message": "grüße", "priority": "now", "client_message_id": "abc"}]
    assert all(b"Posthouse-Agent: eve\r\n" in each for each in daemon.asked)


def test_send_with_a_closed_stdout_sends_once(tmp_path: Path) -> None:
    command = f"{shlex.join([*COMMAND, 'send', 'bob', 'hi', '--id', 'abc'])} >&-"
    with answering(daemon_of(tmp_path), ACCEPTED) as daemon:
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, env=environment(tmp_path), timeout=60
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert [body["client_message_id"] for body in bodies(daemon.asked)] == ["abc"]


def test_send_without_an_agent_acts_for_the_one_in_the_environment(tmp_path: Path) -> None:
    with answering(daemon_of(tmp_path), ACCEPTED) as daemon:
        assert run_command(tmp_path, "send", "bob", "hi", POSTHOUSE_AGENT="eve").returncode == 0
    assert b"Posthouse-Agent: eve\r\n" in daemon.asked[0]


def test_send_that_may_have_reached_the_daemon_is_repeated_with_the_same_id(tmp_path: Path) -> None:
    with answering(daemon_of(tmp_path), b"") as daemon:
        done = run_command(tmp_path, "send", "bob", "hi")
    assert done.returncode != 0
    assert "daemon" in done.stderr
    sent = bodies(daemon.asked)
    assert len(sent) > 1
    assert len({body["client_message_id"] for body in sent}) == 1


def test_send_to_a_topic_that_the_daemon_does_not_know_says_so(tmp_path: Path) -> None:
    unverified = ok('{"client_message_id": "abc", "status": "queued", "topic_unverified": true}')
    with answering(daemon_of(tmp_path), unverified.replace(b"200 OK", b"202 Accepted")) as daemon:
        done = run_command(tmp_path, "send", "#builds", "hi")
    assert (done.returncode, done.stdout) == (0, "abc  queued\n")
    assert "this host does not know the topic #builds" in done.stderr
    assert len({body["client_message_id"] for body in bodies(daemon.asked)}) == 1


@pytest.mark.parametrize(
    "words", [["bob"], ["bob", " "], ["bob", "a", "b"], ["bob", "hi", "--no-such"], ["bob", "hi", "--id"]]
)
def test_words_that_send_does_not_know_reach_no_daemon(tmp_path: Path, words: list[str]) -> None:
    with answering(daemon_of(tmp_path), ACCEPTED) as daemon:
        done = run_command(tmp_path, "send", *words)
    assert done.returncode == 2
    assert "hint:" in done.stderr
    assert daemon.asked == []
