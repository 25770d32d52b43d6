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
