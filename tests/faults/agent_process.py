"""The program of an agent as a process of its own, that a campaign can kill at any moment, and what it told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.forked import ROOT


class Shown(NamedTuple):
    """What a program told of one message."""

    id: str
    body: str
    is_read_before: bool


class AgentProcess:
    """The reading program of an agent."""

    def __init__(self, name: str, daemon: Path, log: Path) -> None:
        self._command = [sys.executable, "-m", "tests.faults.agent_program", name, str(daemon), name]
        self._process: subprocess.Popen[bytes] | None = None
        self.home = log.with_suffix(".home")
        self.log = log

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "POSTHOUSE_HOME": str(self.home)},
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the program, and a command that it runs, without a warning."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def has_told(self, body: str) -> bool:
        """Return True if the program has told of a message, by its text."""
        return json.dumps(body).encode() in self.log.read_bytes()

    def told(self) -> list[list[Shown] | str]:
        """Return what the program told, in order."""
        lines: list[list[Shown] | str] = []
        for line in self.log.read_bytes().splitlines():
            try:
                value = json.loads(line)
            except ValueError:  # empty, or torn by a kill
                continue
            if "items" in value:
                lines.append(
                    [Shown(each["id"], each["body"], each["read_before"] is not None) for each in value["items"]]
                )
            else:
                lines.append(next(iter(value)))
        return lines
