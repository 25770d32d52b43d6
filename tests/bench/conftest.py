from __future__ import annotations

from pathlib import Path

import pytest

from bench.__main__ import main
from tests.cli.command_line import CommandLine


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line of the benchmarks."""
    return CommandLine(tmp_path, capsys, main)
