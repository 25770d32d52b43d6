from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench import start


def test_every_command_takes_turns_with_the_bare_interpreter_and_everything_is_stopped_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, ...]] = []

    def run(words: tuple[str, ...], **_options: Any) -> None:
        started.append(words[3:] if "posthouse" in words[2] else words[2:])

    monkeypatch.setattr(subprocess, "run", run)
    report = start.measure_start(tmp_path, 2, lambda _text: None)
    assert [each["name"] for each in report["required"]] == [each.name for each in start.REQUIRED]
    assert (started[0], started[-1]) == (("up", "--name", "here"), ("down",))
    assert started.count(("pass",)) == 4
    stopped = started.index(("daemon", "down"))
    assert started[:stopped].count(("send", "here", "hello")) == started[stopped:].count(("send", "here", "hello")) == 3
