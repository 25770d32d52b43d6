"""The directory of a daemon: its files, their modes, and the lock that admits one daemon at a time.

    0700  .
    0600  pid sock local_token mcp_token keypair.json host_fingerprint.json roster.json outbox.db inbox.db agents.db
          daemon.lock
    0644  http.port config.toml schema_version daemon.log

Invariant: only the lock decides whether a daemon runs here; pid and sock are left-overs if no process holds it. If
you change the layout: 1. raise SCHEMA_VERSION if an older daemon could not read it, 2. docs/explain.
"""

from __future__ import annotations

import os
from pathlib import Path

from posthouse.files import private_dir, read_private, write_atomic
from posthouse.keys import new_token
from posthouse.model.errors import PosthouseError, error
from posthouse.sqlite.store_lock import StoreLock

SCHEMA_VERSION = 1


class DaemonDirectory:
    """The paths of one daemon."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pid = root / "pid"
        self.socket = root / "sock"
        self.local_token = root / "local_token"
        self.key = root / "keypair.json"
        self.host_fingerprint = root / "host_fingerprint.json"
        self.roster = root / "roster.json"
        self.outbox = root / "outbox.db"
        self.inbox = root / "inbox.db"
        self.agents = root / "agents.db"
        self.http_port = root / "http.port"
        self.schema_version = root / "schema_version"
        self.log = root / "daemon.log"

    def prepare(self) -> None:
        """Create the directory, or check that it is private and of a version that this daemon knows."""
        private_dir(self.root)
        try:
            found = int(self.schema_version.read_text())
        except FileNotFoundError:
            write_atomic(self.schema_version, f"{SCHEMA_VERSION}\n".encode())
            return
        except ValueError as fault:
            raise error("store_not_ours", path=str(self.root), expected="daemon", reason=str(fault)) from fault
        if found > SCHEMA_VERSION:
            raise error(
                "store_schema_newer", path=str(self.root), component="daemon", found=found, known=SCHEMA_VERSION
            )

    def lock(self) -> StoreLock:
        """Lock the directory for this process; raises daemon_running."""
        try:
            return StoreLock(self.root / "daemon", exclusive=True)
        except PosthouseError as failure:
            if failure.code != "store_in_use":
                raise
            raise error("daemon_running", directory=str(self.root)) from failure

    def write_pid(self) -> None:
        """Write the id of this process."""
        write_atomic(self.pid, f"{os.getpid()}\n".encode(), sync=False)

    def write_port(self, port: int) -> None:
        """Write the port on loopback."""
        write_atomic(self.http_port, f"{port}\n".encode(), sync=False)

    def clear(self) -> None:
        """Remove the files that only a running daemon has."""
        for path in (self.socket, self.pid, self.http_port):
            path.unlink(missing_ok=True)

    def token(self) -> str:
        """Return the local token; create it the first time."""
        return _keep_token(self.local_token)

    def mcp_token(self) -> str:
        """Return the token for MCP over HTTP, which opens the tools only; create it the first time."""
        return _keep_token(self.root / "mcp_token")


def _keep_token(path: Path) -> str:
    try:
        return read_private(path).decode().strip()
    except FileNotFoundError:
        token = new_token()
        write_atomic(path, f"{token}\n".encode())
        return token
