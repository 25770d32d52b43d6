"""`posthouse relay follow` as a process of its own, and a leader that it may follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from posthouse.keys import keyfile
from tests.faults.child import Child
from tests.faults.relay_process import START_S, RelayProcess


class Standby:
    """`posthouse relay follow` into a directory of its own."""

    def __init__(self, folder: Path, leader: RelayProcess, key: Path) -> None:
        self.data_dir = folder / "standby" / "relay"
        self._env = {"POSTHOUSE_HOME": str(folder / "home")}
        self._words = ("--data-dir", str(self.data_dir), "--json")
        self._key = key
        self._leader = leader
        self._child: Child | None = None

    def start(self, *more: str) -> dict[str, Any]:
        """Start it and return what it prints once its copy is complete."""
        command = ("relay", "follow", self._leader.url, "--key-file", str(self._key))
        self._child = Child("posthouse.cli.main", *command, *self._words, *more, env=self._env)
        told: dict[str, Any] = json.loads(self._child.wait_lines(1, START_S)[0])
        return told

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def run(self, *words: str) -> tuple[int, str]:
        """Run a command about its directory; return exit code and stderr."""
        with Child("posthouse.cli.main", *words, *self._words, env=self._env) as child:
            return child.wait(START_S), child.errors


def leader_in(folder: Path, key: Path, *flags: str) -> RelayProcess:
    """Return a relay that lets the node of a key file follow."""
    return RelayProcess(folder / "leader", "--followers", keyfile.load(key).node, *flags, home=folder / "home")
