"""reserve, release and guard against a real daemon, a real git repository and Claude Code's settings file."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine, Outcome
from tests.faults.daemon_process import DaemonProcess

pytestmark = pytest.mark.xdist_group("cli-daemon")


class Desk:
    """A daemon with the agents ann and ben, a repository, and the commands of an agent in it."""

    def __init__(self, cli: CommandLine, daemon: DaemonProcess, repository: Path) -> None:
        self._cli = cli
        self.daemon = daemon
        self.repository = repository

    def __call__(self, agent: str, *tokens: str) -> Outcome:
        os.environ["POSTHOUSE_AGENT"] = agent
        try:
            return self._cli(*tokens, "--dir", str(self.daemon.directory))
        finally:
            del os.environ["POSTHOUSE_AGENT"]

    def git(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        command = ["git", *identity, *words]
        env = os.environ | environ
        return subprocess.run(command, cwd=self.repository, capture_output=True, text=True, env=env, check=False)

    def stage(self, name: str) -> None:
        (self.repository / name).parent.mkdir(exist_ok=True)
        (self.repository / name).write_text("x")
        assert self.git("add", name).returncode == 0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("d") / "d", "http://127.0.0.1:9") as running:
        yield running


@pytest.fixture
def desk(cli: CommandLine, daemon: DaemonProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.delenv("POSTHOUSE_AGENT", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "user" / ".claude"))
    (tmp_path / "user" / ".claude").mkdir(parents=True)
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    made = Desk(cli, daemon, repository)
    assert made.git("init", "-q").returncode == 0
    for name in ("ann", "ben"):
        assert made("", "agent", "add", name).exit == 0
    yield made
    made("ann", "release", "--force")


def items(outcome: Outcome) -> Any:
    assert outcome.exit == 0, outcome.err
    return outcome.value["items"]


def test_agent_reserves_lists_and_releases(desk: Desk) -> None:
    (made,) = items(desk("ann", "reserve", "src/api", "--for", "30m", "--note", "refactor", "--json"))
    assert made["path"] == str(desk.repository / "src" / "api")
    refused = desk("ben", "reserve", "src", "--json")
    assert refused.exit == Exit.REFUSED
    assert "ann has reserved" in refused.err
    shown = desk("ben", "reserve").out
    assert "refactor" in shown
    assert "ann" in shown
    assert [each["path"] for each in items(desk("ann", "release", "src/api", "--json"))] == [made["path"]]
    assert items(desk("ben", "reserve", "src", "--json"))


def test_person_who_has_reserved_a_file_is_no_address_to_write_to(desk: Desk) -> None:
    items(desk("", "reserve", "notes.txt", "--json"))
    refused = desk("ann", "reserve", "notes.txt")
    assert "a person has reserved" in refused.err and "posthouse send" not in refused.err
    assert "you had reserved nothing there" in desk("ann", "release", "notes.txt").out
    assert items(desk("", "release", "notes.txt", "--json"))


def test_check_refuses_an_agent_and_only_warns_a_person(desk: Desk) -> None:
    desk("ann", "reserve", "src", "--note", "refactor")
    desk.stage("src/a.py")
    refused = desk("ben", "guard", "check")
    assert refused.exit == Exit.REFUSED
    assert "ann has reserved" in refused.out
    assert desk("ann", "guard", "check").exit == 0
    person = desk("", "guard", "check")
    assert (person.exit, "only a warning" in person.err) == (0, True)


def test_check_lets_pass_what_it_cannot_know(desk: Desk, cli: CommandLine, tmp_path: Path) -> None:
    desk.stage("a.py")
    absent = cli("guard", "check", "--dir", str(tmp_path / "nowhere"))
    assert (absent.exit, "no daemon runs" in absent.err) == (0, True)
    os.chdir(tmp_path)
    outside = desk("ben", "guard", "check")
    assert (outside.exit, "not a git repository" in outside.err) == (0, True)


@pytest.mark.parametrize("hooks_path", [None, "own-hooks"])
def test_pre_commit_refuses_reserved_files_and_runs_the_hook_that_was_there(desk: Desk, hooks_path: str | None) -> None:
    hooks = desk.repository / (hooks_path or ".git/hooks")
    if hooks_path is not None:
        desk.git("config", "core.hooksPath", hooks_path)
    hooks.mkdir(exist_ok=True)
    (hooks / "pre-commit").write_text("#!/bin/sh\ntouch before-ran\n")
    (hooks / "pre-commit").chmod(0o755)
    assert desk("", "guard", "install").exit == 0
    assert desk("", "guard", "install").out == "no change\n"
    desk("ann", "reserve", "src")
    desk.stage("src/a.py")
    refused = desk.git("commit", "-qm", "x", POSTHOUSE_AGENT="ben")
    assert refused.returncode != 0
    assert "ann has reserved" in refused.stdout + refused.stderr
    assert not (desk.repository / "before-ran").exists()
    off = desk.git("commit", "-qm", "x", POSTHOUSE_AGENT="ben", POSTHOUSE_GUARD="off")
    assert off.returncode == 0, off.stderr
    assert (desk.repository / "before-ran").exists()
    assert desk("", "guard", "remove").exit == 0
    assert (hooks / "pre-commit").read_text() == "#!/bin/sh\ntouch before-ran\n"
    assert stat.S_IMODE((hooks / "pre-commit").stat().st_mode) == 0o755


def test_install_adds_one_hook_to_claude_code_and_remove_takes_it_away(desk: Desk, tmp_path: Path) -> None:
    settings = tmp_path / "user" / ".claude" / "settings.json"
    mine = {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "mine"}]}]}}
    settings.write_text(json.dumps(mine))
    installed = desk("", "guard", "install")
    assert "shell" in installed.err
    entries = json.loads(settings.read_text())["hooks"]["PreToolUse"]
    assert [entry["matcher"] for entry in entries] == ["Bash", "Edit|MultiEdit|Write|NotebookEdit"]
    assert "hook claude-code guard" in entries[1]["hooks"][0]["command"]
    assert desk("", "guard", "remove").exit == 0
    assert json.loads(settings.read_text()) == mine
