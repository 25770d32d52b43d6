"""Waking agents from the command line, against a real daemon: `posthouse hook`, `connect --status`, `agent set`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine
from tests.cli.daemon.hosts import Hosts
from tests.cli.daemon.machine import BOUND_S, Machine

pytestmark = pytest.mark.xdist_group("cli-daemon")
SECRET = "the words of the message"


def run_hook(directory: Path, event: str, name: str, tmp_path: Path) -> Any:
    """Run one hook as a child of this process, which stands for the program."""
    done = subprocess.run(
        [sys.executable, "-m", "posthouse.cli.main", "hook", "claude-code", event, "--as", name, "--dir", directory],
        input=json.dumps({"session_id": "s", "hook_event_name": event, "cwd": str(tmp_path)}).encode(),
        capture_output=True,
        env={**os.environ, "CLAUDE_ENV_FILE": str(tmp_path / "env")},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return json.loads(done.stdout)["hookSpecificOutput"]["additionalContext"] if done.stdout else ""


def test_program_hears_of_mail_through_its_hooks_and_status_shows_it(
    cli: CommandLine, hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = hosts.alice.directory
    at = ("--dir", str(directory), "--json")
    assert "you are hooked@" in run_hook(directory, "session-start", "hooked", tmp_path)
    assert (tmp_path / "env").read_text() == "export POSTHOUSE_AGENT=hooked\n"
    sent = cli("send", "hooked", SECRET, *at).value
    assert cli("inbox", "wait", "--agent", "hooked", "--timeout", "20", "--peek", *at).value["items"]
    heard = run_hook(directory, "prompt", "hooked", tmp_path)
    assert "1 new message waits" in heard
    assert SECRET not in heard
    assert run_hook(directory, "tool", "hooked", tmp_path) == ""
    assert sent

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ("connect", "claude-code", "--wake", "--dir", str(directory), "--as", "hooked")
    assert cli(*words, "--write").exit == 0
    status = cli(*words, "--status", "--json")
    assert (status.exit, [each["state"] for each in status.value["checks"]]) == (0, ["ok"] * 4)
    assert f"hooked, process {os.getpid()}: tool at" in status.value["checks"][3]["text"]


def test_command_of_an_agent_is_set_and_removed(cli: CommandLine, hosts: Hosts) -> None:
    at = ("--dir", str(hosts.alice.directory), "--json")
    cli("agent", "add", "ringing", *at)
    assert cli("agent", "set", "ringing", "--on-mail", "true", *at).value == {"name": "ringing", "on_mail": "true"}
    assert cli("agent", "set", "ringing", "--on-mail", "", *at).value == {"name": "ringing", "on_mail": None}
    assert cli("agent", "set", "rigning", "--on-mail", "true", *at).problem["code"] == "agent_unknown"


def test_mail_is_announced_again_after_a_kill_between_its_claim_and_the_end_of_its_command(tmp_path: Path) -> None:
    machine, out, killed = Machine(tmp_path / "home"), tmp_path / "out", tmp_path / "killed"
    try:
        machine("daemon", "up", "--relay", "127.0.0.1:9", "--no-tcp")
        machine("agent", "add", "bot")
        command = f"[ -e {killed} ] || {{ touch {killed}; kill -9 $PPID; exit 1; }}; echo $POSTHOUSE_NEW > {out}"
        machine("agent", "set", "bot", "--on-mail", command)
        machine("send", "bot", "hello")
        assert until(killed.exists)
        assert until(lambda: machine.run("daemon", "status").returncode != 0)
        machine("daemon", "up", "--relay", "127.0.0.1:9", "--no-tcp")
        assert until(out.exists)
    finally:
        machine.run("down")


def test_command_of_an_event_hook_can_pause_the_agent_that_the_event_is_for(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "home")
    machine.home.mkdir(mode=0o700)
    words = [sys.executable, "-m", "posthouse.cli.main", "agent", "pause", "--for", "1h", "--reason", "limit"]
    hook = f'[[hook]]\nname = "pause"\nevent = "received"\ncommand = {json.dumps(shlex.join(words))}\n'
    (machine.home / "config.toml").write_text(hook)
    try:
        machine("daemon", "up", "--relay", "127.0.0.1:9", "--no-tcp")
        machine("agent", "add", "bot")
        machine("send", "bot", "hello")
        assert until(lambda: machine("agent", "ls")["items"][0]["paused"] is not None)
        (agent,) = machine("agent", "ls")["items"]
        assert (agent["paused"]["reason"], agent["paused"]["set_by"]) == ("limit", "bot")
    finally:
        machine.run("down")


def until(is_right: Callable[[], bool]) -> bool:
    """Look until it is right, within a bound."""
    end_s = time.monotonic() + BOUND_S
    while not is_right() and time.monotonic() < end_s:
        time.sleep(0.05)
    return is_right()
