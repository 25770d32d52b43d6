"""Two hosts on one machine: each has a home of its own and nothing else in common but the network.

Commands run as real processes, exactly as a person would type them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.relay_process import RelayProcess
from tests.forked import run_forked

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60


@dataclass(frozen=True)
class Said:
    """The result of a command."""

    exit: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The one JSON object on stdout."""
        assert self.exit == 0, self.err
        return json.loads(self.out)

    @property
    def code(self) -> str:
        """The code of the error on stderr."""
        return str(self.problem["code"])

    @property
    def problem(self) -> Any:
        """The error on stderr."""
        assert self.exit != 0, self.out
        return json.loads(self.err.strip().splitlines()[-1])


class Host:
    """A machine with a user of posthouse."""

    def __init__(self, home: Path, **environ: str) -> None:
        self.home = home
        self.environ = environ

    def run(self, *tokens: str) -> Said:
        """Run `posthouse ... --json` on this host."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("POSTHOUSE_")}
        own = {"POSTHOUSE_HOME": str(self.home), "PYTHONPATH": str(ROOT / "src")}
        environ = inherited | own | self.environ
        done = run_forked("posthouse.cli.main", *tokens, "--json", timeout=PATIENCE_S, env=environ)
        return Said(done.returncode, done.stdout, done.stderr)

    def make_key(self) -> str:
        """Make the key of this host and return its node id."""
        return str(self.run("keys", "new").value["node"])


@dataclass
class TwoHosts:
    """The host that runs a relay, the relay, and another host."""

    first: Host
    second: Host
    relay: RelayProcess

    def invite(self, mesh: str, *flags: str) -> str:
        """Return a fresh invite, made on the first host."""
        return str(self.first.run("mesh", "invite", mesh, *flags).value["invite"])
