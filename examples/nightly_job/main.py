"""A nightly job that two hosts start at the same time and that runs once: a lock keeps the second one out.

Run it with `python examples/nightly_job/main.py`. The lock alone is not enough: a host may hang after it got the lock
and wake up when another host has it. So the job writes through a fence, which refuses the token of a former holder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PATIENCE_S = 120
JOB = Path(__file__).with_name("job.py")


class Host:
    """A machine with a key of its own."""

    def __init__(self, name: str, home: Path, relay: str | None = None) -> None:
        self.name = name
        self._environ = os.environ | {"POSTHOUSE_HOME": str(home)}
        if relay is not None:
            self._environ["POSTHOUSE_CLIENT_RELAY"] = relay

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command on this host."""
        command = [sys.executable, "-m", "posthouse.cli.main", *words]
        return subprocess.Popen(
            command, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def posthouse(self, *words: str) -> dict[str, Any]:
        """Run a command on this host and return its result."""
        with self.start(*words, "--json") as process:
            out, _ = process.communicate(timeout=PATIENCE_S)
        answer: dict[str, Any] = json.loads(out)
        return answer


def run_on_both(hosts: list[Host], report: Path) -> None:
    """Start the job on every host at once; each waits for the lock, and finds the work of the night done or not."""
    job = ("lock", "run", "nightly", "--", sys.executable, str(JOB), str(report))
    for process in [host.start(*job) for host in hosts]:
        with process:
            out, _ = process.communicate(timeout=PATIENCE_S)
            sys.stdout.write(out)


def write_late(host: Host, report: Path) -> None:
    """Write with the token of a holder that hung, after another one got the lock."""
    old = host.posthouse("lock", "acquire", "nightly")
    host.posthouse("lock", "release", "nightly", str(old["token"]))
    run_on_both([host], report.with_name("tuesday.txt"))
    late = os.environ | {"POSTHOUSE_FENCING_TOKEN": str(old["token"])}
    done = subprocess.run([sys.executable, str(JOB), str(report)], env=late, capture_output=True, text=True)
    sys.stdout.write(f"the late job: {done.stdout.strip()}\n")


def main(folder: Path) -> None:
    office = Host("office", folder / "o")
    office.posthouse("keys", "new")
    relay = office.start("relay", "up", "--listen", "127.0.0.1:0", "--json")
    assert relay.stdout is not None
    with relay:
        url = json.loads(relay.stdout.readline())["url"]
        hosts = [Host(name, folder / name, url) for name in ("east", "west")]
        report = folder / "monday.txt"
        try:
            for host in hosts:
                host.posthouse("keys", "new")
            run_on_both(hosts, report)
            write_late(hosts[0], report)
        finally:
            relay.terminate()
        sys.stdout.write(f"the report says: {report.read_text().strip()}\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
