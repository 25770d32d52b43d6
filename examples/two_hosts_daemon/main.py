"""Two hosts with a daemon each, one relay, three agents; the reviewer's host goes offline, and nothing is lost.

Run it with `python examples/two_hosts_daemon/main.py`. Planner and writer live on the host north and share its daemon,
the reviewer lives on south. Each host has a home of its own, as on two machines. Agents need neither a key nor a
connection to the relay: they speak to the daemon of their host.
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


class Host:
    """A machine: a home directory and its daemon."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        self.home = home
        self.directory = home / "daemon"

    def posthouse(self, *words: str) -> dict[str, Any]:
        """Run a command on this host and return its result."""
        command = [sys.executable, "-m", "posthouse.cli.main", *words, "--json"]
        environ = os.environ | {"POSTHOUSE_HOME": str(self.home)}
        done = subprocess.run(command, env=environ, check=True, capture_output=True, timeout=PATIENCE_S)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def up(self, relay: str) -> str:
        """Start the daemon and return its node id."""
        node: str = self.posthouse("daemon", "up", "--persistent", "--relay", relay)["node"]
        say(f"{self.name} is up")
        return node

    def down(self) -> None:
        self.posthouse("daemon", "down")
        say(f"{self.name} is down")


def plan(north: Host) -> None:
    """The planner: send three tasks to the reviewer, whether its host is online or not."""
    with DaemonClient(north.directory) as daemon:
        for task in ("read the draft", "check the numbers", "say yes or no"):
            answer = daemon.send("reviewer", task, priority="next")
            say(f"planner: {task!r} is {answer.status}")


def write(north: Host) -> None:
    """The writer, on the same host: post to all subscribers of the topic."""
    with DaemonClient(north.directory) as daemon:
        daemon.post("drafts", "The horse arrives at dawn.", usage={"model": "granite-small", "output_tokens": 6})


def review(south: Host) -> None:
    """The reviewer: read everything in order, and reply."""
    with DaemonClient(south.directory) as daemon:
        last = None
        while last is None or last.body != "say yes or no":
            for item in daemon.wait(PATIENCE_S):
                where = f"#{item.topic}" if item.topic else "to me"
                say(f"reviewer reads {where}: {item.body}")
                daemon.seen([item.id])
                last = item if item.topic is None else last
        daemon.send(last.sender, "yes", reply_to_id=last.message_id)


def read_reply(north: Host) -> None:
    """The planner again: wait for the reply."""
    with DaemonClient(north.directory) as daemon:
        answer = daemon.wait(PATIENCE_S, sender="reviewer")[0]
        say(f"planner reads: {answer.body}")


def main(folder: Path) -> None:
    office = Host("the relay's host", folder / "r")
    north, south = Host("north", folder / "n"), Host("south", folder / "s")
    office.posthouse("keys", "new")
    command = [sys.executable, "-m", "posthouse.cli.main", "relay", "up", "--listen", "127.0.0.1:0", "--json"]
    environ = os.environ | {"POSTHOUSE_HOME": str(office.home)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as relay:
        assert relay.stdout is not None
        url = json.loads(relay.stdout.readline())["url"]
        try:
            converse(office, north, south, url)
        finally:
            for host in (north, south):
                host.down()
            relay.terminate()


def converse(office: Host, north: Host, south: Host, relay: str) -> None:
    north.up(relay)
    reviewer = south.up(relay)
    office.posthouse("mesh", "members", "main", "--add", reviewer, "--name", "reviewer", "--relay", relay)
    north.posthouse("topic", "create", "drafts")
    south.posthouse("topic", "subscribe", "drafts")
    south.down()
    write(north)
    plan(north)
    south.up(relay)
    review(south)
    read_reply(north)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
