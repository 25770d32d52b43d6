"""A team of three agents on one laptop: a planner hands out work, a coder reserves the file it edits, a tester answers.

Run it with `python examples/team_of_three/main.py`. Each agent is a thread here; on your laptop each is a coding agent
or a program of its own. They share one daemon, and each has an address, an inbox and receipts of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from posthouse import DaemonClient

PATIENCE_S = 120


def posthouse(home: Path, *words: str) -> dict[str, Any]:
    """Run a command of the laptop and return its result."""
    command = [sys.executable, "-m", "posthouse.cli.main", *words, "--json"]
    environ = os.environ | {"POSTHOUSE_HOME": str(home)}
    done = subprocess.run(command, env=environ, check=True, capture_output=True, timeout=PATIENCE_S)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def code(daemons: Path, project: Path) -> None:
    """The coder: reserve the file, edit it, hand it to the tester."""
    script = project / "deploy.sh"
    with DaemonClient(daemons, agent="coder") as daemon:
        (task,) = daemon.wait(PATIENCE_S)
        daemon.reserve(str(script), note=task.body or "")
        script.write_text("echo deploying ${1:+(dry run)}\n")
        daemon.send("tester", f"{script.name} is ready: {task.body}", reply_to_id=task.message_id)


def test(daemons: Path, project: Path) -> None:
    """The tester: run what the coder wrote, and tell the topic."""
    with DaemonClient(daemons, agent="tester") as daemon:
        (task,) = daemon.wait(PATIENCE_S)
        say(f"tester reads: {task.body}")
        held = daemon.reservations(str(project / "deploy.sh"))
        say(f"deploy.sh is reserved by {held[0].agent}")
        ran = subprocess.run(["sh", "deploy.sh", "--dry-run"], cwd=project, check=True, capture_output=True, text=True)
        daemon.send("#builds", f"deploy.sh --dry-run printed: {ran.stdout.strip()}")


def plan(daemons: Path) -> None:
    """The planner: hand out the work, then read what came of it."""
    with DaemonClient(daemons, agent="planner") as daemon:
        daemon.create_topic("builds")
        daemon.subscribe("builds")
        daemon.send("coder", "add --dry-run to deploy.sh", client_message_id="dry-run")
        (news,) = daemon.wait(PATIENCE_S, topic="builds")
        say(f"planner reads #builds: {news.body}")


def main(folder: Path) -> None:
    home, project = folder / "home", folder / "project"
    project.mkdir()
    try:
        posthouse(home, "up", "--listen", "127.0.0.1:0")
        for name, summary in {"planner": "splits the work", "coder": "writes it", "tester": "runs it"}.items():
            posthouse(home, "agent", "add", name, "--summary", summary)
        daemons = home / "daemon"
        agents = [threading.Thread(target=work, args=(daemons, project)) for work in (code, test)]
        for agent in agents:
            agent.start()
        plan(daemons)
        for agent in agents:
            agent.join(PATIENCE_S)
    finally:
        posthouse(home, "down")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
