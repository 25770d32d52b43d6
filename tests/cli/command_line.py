"""Run `posthouse` inside the test's process and see what a user would see."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from posthouse.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command line ended with."""

    exit: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The one JSON object on stdout."""
        assert self.out.count("\n") == 1, f"not one line: {self.out!r} (stderr {self.err!r})"
        return json.loads(self.out)

    @property
    def problem(self) -> Any:
        """The one JSON object on stderr."""
        assert self.out == ""
        return json.loads(self.err)


class CommandLine:
    """A command line with a posthouse home of its own."""

    def __init__(
        self, home: Path, capture: pytest.CaptureFixture[str], program: Callable[[Sequence[str]], None] = main
    ) -> None:
        self.home = home
        self._capture = capture
        self._program = program

    def __call__(self, *tokens: str) -> Outcome:
        self._capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            self._program(tokens)
        out, err = self._capture.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(int(ended.value.code), out, err)


def put(path: Path, text: str, mode: int = 0o644) -> Path:
    """Write a file of a user, with its folders, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    path.chmod(mode)
    return path
