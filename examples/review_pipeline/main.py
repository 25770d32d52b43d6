"""A review pipeline: a change is reviewed by an agent before it is merged, and the author waits for the verdict.

Run it with `python examples/review_pipeline/main.py`. A stub takes the place of Claude Code, so the example needs no
account; with Claude Code installed, run it with `REVIEWER="claude -p" python examples/review_pipeline/main.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from posthouse import DaemonClient

PATIENCE_S = 120
HERE = Path(__file__).parent
CHANGES = ("- retries = 1\n+ retries = 5\n", "+ password = 'hunter2'\n")


def posthouse(home: Path, *words: str) -> dict[str, Any]:
    """Run a command and return its result."""
    command = [sys.executable, "-m", "posthouse.cli.main", *words, "--json"]
    environ = os.environ | {"POSTHOUSE_HOME": str(home)}
    done = subprocess.run(command, env=environ, check=True, capture_output=True, timeout=PATIENCE_S)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def ask_for_reviews(daemons: Path) -> None:
    """The author: request a review of each change and act on the verdict."""
    with DaemonClient(daemons, agent="author") as daemon:
        for change in CHANGES:
            # the reviewer may still be starting: the request waits for it
            verdict = daemon.request("reviewer", change, timeout_s=PATIENCE_S, queue=True)
            first_line = (verdict.body or "").splitlines()[0]
            action = "merged" if first_line.startswith("APPROVE") else "not merged"
            sys.stdout.write(f"{change.splitlines()[-1]!r} is {action}: {first_line}\n")


def main(folder: Path) -> None:
    home = folder / "home"
    try:
        posthouse(home, "up", "--listen", "127.0.0.1:0")
        for name in ("author", "reviewer"):
            posthouse(home, "agent", "add", name)
        daemons = home / "daemon"
        words = [sys.executable, str(HERE / "reviewer.py"), str(daemons), str(len(CHANGES))]
        with subprocess.Popen(words) as reviewer:
            ask_for_reviews(daemons)
            reviewer.wait(PATIENCE_S)
    finally:
        posthouse(home, "down")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
