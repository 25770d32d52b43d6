"""The program of an agent that a campaign kills at any moment: `python -m tests.faults.agent_program WAY DIR AGENT`.

It reads mail by the command line, over HTTP or with the Python client, and tells what it was shown on stdout, one JSON
object in a line, before it marks the mail as read:

    {"life": true}          a new process
    {"items": [...]}        mail that was shown as new, or as read before
    {"done": true}          everything shown so far is marked
    {"failed": true}        a command failed before it had marked what it showed: the next one shows it again
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PAUSE_S = 0.05
_COMMAND_PAUSE_S = 0.3  # each command costs half a second of a processor
_WAIT_S = 5


def tell(line: dict[str, Any]) -> None:
    """Write one line in one piece; the line break before it ends a line that a kill has torn."""
    os.write(1, b"\n" + json.dumps(line).encode() + b"\n")


def read_by_command_line(directory: Path, agent: str) -> None:
    """Show mail with `posthouse inbox wait`, which writes to this program's stdout and marks the mail afterwards."""
    command = [sys.executable, "-m", "posthouse.cli.main", "inbox", "wait", "--json", "--timeout", str(_WAIT_S)]
    while True:
        done = subprocess.run([*command, "--agent", agent, "--dir", str(directory)], stderr=subprocess.DEVNULL)
        tell({"done": True} if done.returncode == 0 else {"failed": True})
        time.sleep(_COMMAND_PAUSE_S)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(self._path))


def read_over_http(directory: Path, agent: str) -> None:
    """Ask for unread mail, and repeat marking it until the daemon has answered."""

    def ask(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        while True:
            connection = _SocketConnection(directory / "sock")
            try:
                connection.request(method, path, None if body is None else json.dumps(body), {"Posthouse-Agent": agent})
                answer = connection.getresponse()
                found = json.loads(answer.read())
                if answer.status == 200:
                    return found
            except (OSError, http.client.HTTPException, ValueError):
                pass
            finally:
                connection.close()
            time.sleep(_PAUSE_S)

    while True:
        items = ask("GET", f"/v1/inbox?unread=true&limit=20&wait_s={_WAIT_S}")["items"]
        if items:
            tell({"items": items})
            ask("POST", "/v1/inbox/seen", {"ids": [item["id"] for item in items]})
            tell({"done": True})


def read_with_the_client(directory: Path, agent: str) -> None:
    """Wait for mail as a registered process: a successor is shown again what this one has read and not answered."""
    import msgspec

    from posthouse.client.daemon import DaemonClient
    from posthouse.model.errors import PosthouseError

    def insist(call: Any) -> Any:
        while True:
            try:
                return call()
            except PosthouseError:
                time.sleep(_PAUSE_S)

    with DaemonClient(directory, agent=agent) as daemon:
        named = insist(lambda: daemon.register(agent, pid=os.getpid()))
        assert named.name == agent, f"the name of a killed process is free, and this one got {named.name}"
        while True:
            page = insist(lambda: daemon.wait(_WAIT_S, peek=True))
            if page:
                tell({"items": [msgspec.to_builtins(item) for item in page]})
                insist(lambda page=page: daemon.seen([item.id for item in page]))
                insist(lambda page=page: daemon.advance(page))
                tell({"done": True})


WAYS = {"cli": read_by_command_line, "http": read_over_http, "py": read_with_the_client}


if __name__ == "__main__":
    way, directory, agent = sys.argv[1:]
    tell({"life": True})
    WAYS[way](Path(directory), agent)
