"""The measured processes: `posthouse relay up`, which can go away and come back, and `posthouse daemon up`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posthouse.bench.send.terms import RELAY_SETTINGS

_PATIENCE_S = 60
_POSTHOUSE = (sys.executable, "-m", "posthouse.cli.main")


class Relay:
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
        flags = [part for name, value in RELAY_SETTINGS.items() for part in (_flag(name), str(value))]
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


def _flag(setting: str) -> str:
    return "--" + setting.partition(".")[2].replace("_", "-")
