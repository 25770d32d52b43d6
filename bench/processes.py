"""The measured processes: `posthouse relay up`, which can be stopped and restarted, and `posthouse daemon up`.

Each has its own home directory and is stopped when the measurement ends. Both answer after the sync of the commit.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.scales import RELAY_SETTINGS

_TIMEOUT_S = 60
STAGES = "POSTHOUSE_BENCH_STAGES"  # a directory: started processes write the times of their stages there


class RelayProcess:
    """A relay on one port and one store, which can be stopped and started again."""

    def __init__(
        self, data_dir: Path, settings: Mapping[str, int | str] = RELAY_SETTINGS, listen: str = "127.0.0.1:0"
    ) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._listen = listen

    @property
    def url(self) -> str:
        return f"http://{self._listen}"

    @property
    def host(self) -> str:
        return self._listen.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self._listen.rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the relay; every later start uses the port of the first."""
        flags = [part for name, value in self._settings.items() for part in (_flag(name), str(value))]
        options = ("--listen", self._listen, "--data-dir", str(self._data_dir))
        self._process, ready = _start(("relay", "up", "--json", *options, *flags), self._data_dir.parent / "relay-home")
        self._listen = ready["listen"]

    def stop(self) -> None:
        """Stop the relay; its store stays."""
        if self._process is not None:
            _stop(self._process)
            self._process = None

    def resident_mib(self) -> float:
        """Return the resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


@contextmanager
def running_relay(
    data_dir: Path, settings: Mapping[str, int | str] = RELAY_SETTINGS, listen: str = "127.0.0.1:0"
) -> Iterator[RelayProcess]:
    """Run a relay until the block ends."""
    relay = RelayProcess(data_dir, settings, listen)
    relay.start()
    try:
        yield relay
    finally:
        relay.stop()


def _flag(setting: str) -> str:
    return "--" + setting.partition(".")[2].replace("_", "-")


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """The directory of a daemon, and the object it printed when it was ready."""

    directory: Path
    ready: dict[str, Any]

    @property
    def socket(self) -> Path:
        return self.directory / "sock"

    @property
    def node(self) -> str:
        return str(self.ready["node"])


@contextmanager
def running_daemon(home: Path, relay: str) -> Iterator[RunningDaemon]:
    """Run a daemon with its own home directory until the block ends."""
    directory = home / "d"
    words = ("daemon", "up", "--foreground", "--persistent", "--json", "--dir", str(directory), "--relay", relay)
    process, ready = _start(words, home)
    try:
        yield RunningDaemon(directory, ready)
    finally:
        _stop(process)


def _start(words: Sequence[str], home: Path) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start a command and return the process and the object that it prints when it is ready."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.stages" if STAGES in os.environ else "posthouse.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"POSTHOUSE_HOME": str(home)},
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:
            return process, json.loads(line)
        process.stdout.close()
        code = process.wait(_TIMEOUT_S)
        errors.seek(0)
        raise RuntimeError(f"posthouse {words[0]} did not start: exit {code}: {errors.read()[-500:]!r}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(_TIMEOUT_S)
    if process.stdout is not None:
        process.stdout.close()


def run_module(module: str, *arguments: str, limit: int = 1 << 16) -> Awaitable[asyncio.subprocess.Process]:
    """Start `python -m module` with pipes for stdin and stdout; it finds the same packages as this process."""
    return asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=limit,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
