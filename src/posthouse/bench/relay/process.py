"""The measured relay: `posthouse relay up` as a process of its own, with raised rates and everything synced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from posthouse.bench.relay.terms import SETTINGS

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
def running_relay(data_dir: Path, settings: Mapping[str, int] = SETTINGS) -> Iterator[RunningRelay]:
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
