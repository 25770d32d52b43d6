from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with an empty home that does not exist yet."""
    home = tmp_path / "home"
    monkeypatch.setenv("POSTHOUSE_HOME", str(home))
    for name in ("POSTHOUSE_TEST_CLOCK", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return CommandLine(home, capsys)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a user of coding agents, with a project in it, in which the command is run."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CODEX_HOME", "COPILOT_HOME", "CLAUDE_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def plain(cli: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line of that user, who has not moved the home of posthouse."""
    monkeypatch.delenv("POSTHOUSE_HOME")
    return cli
