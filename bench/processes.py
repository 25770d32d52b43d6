"""The measured processes: `posthouse relay up`, which can stop and come back, and `posthouse daemon up`.

Each has a home directory of its own and is ended when the measurement ends. Every answer comes after the sync of its
commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.scales import RELAY_SETTINGS, SEND_SETTINGS

_PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class RunningRelay:
    """Where a relay listens, and its process."""

    host: str
    port: int
    pid: int

    def resident_mib(self) -> float:
        """Return how much memory the process holds."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@contextmanager
def running_relay(data_dir: Path, settings: Mapping[str, int] = RELAY_SETTINGS) -> Iterator[RunningRelay]:
    """A relay that runs until the block ends."""
    flags = [part for name, value in settings.items() for part in (_flag(name), str(value))]
    command = [sys.executable, "-m", "posthouse.cli.main", "relay", "up", "--listen", "127.0.0.1:0", "--json"]
    home = data_dir.parent / "home"
    process = subprocess.Popen(
        [*command, "--data-dir", str(data_dir), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"POSTHOUSE_HOME": str(home)},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the relay did not start: exit {process.wait(_PATIENCE_S)}")
        host, _, port = json.loads(line)["listen"].rpartition(":")
        yield RunningRelay(host, int(port), process.pid)
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()


def _flag(setting: str) -> str:
    return "--" + setting.partition(".")[2].replace("_", "-")


_POSTHOUSE = (sys.executable, "-m", "posthouse.cli.main")


class StoppableRelay:
    """A relay on one port and one store."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.listen = "127.0.0.1:0"

    @property
    def url(self) -> str:
        return f"http://{self.listen}"

    def start(self) -> None:
        """Start it, after the first time on the same port."""
        flags = [part for name, value in SEND_SETTINGS.items() for part in (_flag_of(name), str(value))]
        place = ("--listen", self.listen, "--data-dir", str(self._folder / "relay"))
        self._process, told = _start(("relay", "up", "--json", *place, *flags), self._folder / "relay-home")
        self.listen = told["listen"]

    def stop(self) -> None:
        """End it; its store stays."""
        if self._process is not None:
            _end(self._process)
            self._process = None


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """Where a daemon is, and who it is."""

    directory: Path
    told: dict[str, Any]

    @property
    def socket(self) -> Path:
        return self.directory / "sock"

    @property
    def node(self) -> str:
        return str(self.told["node"])


@contextmanager
def running_daemon(home: Path, relay: str) -> Iterator[RunningDaemon]:
    """A daemon that runs until the block ends, in a home of its own."""
    directory = home / "d"
    words = ("daemon", "up", "--foreground", "--persistent", "--json", "--dir", str(directory), "--relay", relay)
    process, told = _start(words, home)
    try:
        yield RunningDaemon(directory, told)
    finally:
        _end(process)


def _start(words: Sequence[str], home: Path) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a command and return it with the line it says when it is ready."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*_POSTHOUSE, *words],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"POSTHOUSE_HOME": str(home)},
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            return process, json.loads(line)
        process.stdout.close()
        code = process.wait(_PATIENCE_S)
        errors.seek(0)
        raise RuntimeError(f"posthouse {words[0]} did not start: exit {code}: {errors.read()[-500:]!r}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(_PATIENCE_S)
    if process.stdout is not None:
        process.stdout.close()


def _flag_of(setting: str) -> str:
    return "--" + setting.partition(".")[2].replace("_", "-")
