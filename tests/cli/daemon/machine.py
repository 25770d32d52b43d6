"""A machine to type commands on: a home of its own, each command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.forked import run_forked

BOUND_S = 120


class Machine:
    """A home of its own, and commands typed there in processes of their own."""

    def __init__(self, home: Path, *, is_relay_configured: bool = True) -> None:
        self.home = home
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(("POSTHOUSE_", "CI"))}
        self._env["POSTHOUSE_HOME"] = str(home)
        if is_relay_configured:
            self._env["POSTHOUSE_RELAY_LISTEN"] = "127.0.0.1:0"

    def run(self, *words: str, options: tuple[str, ...] = ("--json",)) -> subprocess.CompletedProcess[str]:
        return run_forked("posthouse.cli.main", *words, *options, env=self._env, timeout=BOUND_S)

    def __call__(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def refusal(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.returncode != 0
        return json.loads(done.stderr.splitlines()[-1])
