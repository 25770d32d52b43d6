"""A daemon as a process of its own, that a test can kill at any moment and start again in the same directory."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.faults.child import Child

START_S = 60


class DaemonProcess:
    """`posthouse daemon up --foreground` in a home of its own."""

    def __init__(self, home: Path, relay: str, *flags: str, mesh: str = "main", name: str = "d") -> None:
        self.home = home
        self.relay = relay
        #: short, or its socket's address would be too long
        self.directory = home / name
        #: node id, once it ran
        self.node = ""
        #: what it said when it was ready
        self.told: dict[str, Any] = {}
        #: what the process finds in its environment besides the test's own
        self.environ: dict[str, str] = {}
        self._mesh = mesh
        self._flags = flags
        self._child: Child | None = None

    def start(self) -> None:
        """Start it and wait until its socket answers."""
        place = ("--dir", str(self.directory), "--relay", self.relay, "--mesh", self._mesh)
        env = {"POSTHOUSE_HOME": str(self.home)} | self.environ
        words = ("daemon", "up", "--foreground", "--persistent", "--json", *place, *self._flags)
        self._child = Child("posthouse.cli.main", *words, env=env)
        try:
            self.told = json.loads(self._child.wait_lines(1, START_S)[0])
        except BaseException:
            self.kill()
            raise
        self.node = self.told["node"]

    @property
    def child(self) -> Child:
        """The running process."""
        assert self._child is not None
        return self._child

    @property
    def is_running(self) -> bool:
        """True if it was started and not killed."""
        return self._child is not None

    @property
    def has_ended(self) -> bool:
        """True if it ended by itself."""
        return self._child is not None and self._child.is_over

    def kill(self) -> None:
        """End it without a warning."""
        child, self._child = self._child, None  # before it is over: it does not end by itself
        if child is not None:
            child.kill()

    def __enter__(self) -> DaemonProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
