"""A relay as a real process that can be killed at any moment and started again on the same port and store."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import TracebackType

from tests.faults.child import Child

START_S = 60  # a loaded machine may take its time


class RelayProcess:
    """`posthouse relay up`, with a home and a store of its own."""

    def __init__(self, folder: Path, *flags: str, home: Path | None = None) -> None:
        self.folder = folder
        self.home = home or folder / "home"
        self.data_dir = folder / "relay"
        #: node id of the relay, once it ran
        self.node = ""
        self.port = 0
        #: what the process finds in its environment besides the test's own
        self.environ: dict[str, str] = {}
        #: what runs the command
        self.module = "posthouse.cli.main"
        self._flags = flags
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *more: str) -> None:
        """Start it, with more flags, and wait until it says that it listens."""
        flags = ("--listen", f"127.0.0.1:{self.port}", "--data-dir", str(self.data_dir), "--json", *self._flags, *more)
        env = {"POSTHOUSE_HOME": str(self.home)} | self.environ
        self._child = Child(self.module, "relay", "up", *flags, env=env)
        try:
            told = json.loads(self._child.wait_lines(1, START_S)[0])
        except BaseException:
            self.kill()
            raise
        self.port = int(told["listen"].rpartition(":")[2])
        self.node = told["relay"]

    def command(self, *arguments: str) -> None:
        """Run a command about its store, which must succeed."""
        env = {"POSTHOUSE_HOME": str(self.home)} | self.environ
        with Child("posthouse.cli.main", *arguments, "--data-dir", str(self.data_dir), env=env) as child:
            code = child.wait(START_S)
        assert code == 0, child.errors

    @property
    def is_dead(self) -> bool:
        """Whether it ended by itself."""
        return self._child is not None and self._child.is_over

    def kill(self) -> None:
        """End it without a warning."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self._child is not None:
            self._child.signal(number)

    def stop(self) -> None:
        """Ask it to end, as a service manager does, and wait until it has."""
        if self._child is not None:
            self._child.signal(signal.SIGTERM)
            self._child.wait()
            self._child = None

    def __enter__(self) -> RelayProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
