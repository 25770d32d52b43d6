"""The directory of a daemon: where everything lies, who may read it, and that only one daemon lives in it.

    0700  .
    0600  pid sock local_token keypair.json host_fingerprint.json roster.json outbox.db inbox.db daemon.lock
    0644  http.port config.toml schema_version daemon.log

Invariant: while the lock is held no other daemon starts here, whatever pid and sock say; both are left-overs when
nobody holds it. If you change the layout: 1. SCHEMA_VERSION if an older daemon could not read it, 2. docs/explain.
"""

from __future__ import annotations

import os
from pathlib import Path

from posthouse.files import home_directory, private_dir, read_private, write_atomic
from posthouse.keys import new_token
from posthouse.model.errors import PosthouseError, error
from posthouse.sqlite.store_lock import StoreLock

SCHEMA_VERSION = 1
_READABLE = 0o644


def default_directory(mesh: str) -> Path:
    """Return where the daemon of a mesh lives unless told otherwise."""
    return home_directory() / "daemon" / mesh


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
        self.http_port = root / "http.port"
        self.config = root / "config.toml"
        self.schema_version = root / "schema_version"
        self.log = root / "daemon.log"

    def prepare(self) -> None:
        """Make the directory, or check that it is private and of a version this daemon knows."""
        private_dir(self.root)
        try:
            found = int(self.schema_version.read_text())
        except FileNotFoundError:
            write_atomic(self.schema_version, f"{SCHEMA_VERSION}\n".encode(), mode=_READABLE)
            return
        except ValueError as fault:
            raise error("store_not_ours", path=str(self.root), expected="daemon", reason=str(fault)) from fault
        if found > SCHEMA_VERSION:
            raise error(
                "store_schema_newer", path=str(self.root), component="daemon", found=found, known=SCHEMA_VERSION
            )

    def lock(self) -> StoreLock:
        """Take the directory for this process; raises daemon_running."""
        try:
            return StoreLock(self.root / "daemon", exclusive=True)
        except PosthouseError as failure:
            if failure.code != "store_in_use":
                raise
            raise error("daemon_running", directory=str(self.root)) from failure

    def write_pid(self) -> None:
        """Write who runs here."""
        write_atomic(self.pid, f"{os.getpid()}\n".encode(), sync=False)

    def write_port(self, port: int) -> None:
        """Write where the daemon listens on loopback."""
        write_atomic(self.http_port, f"{port}\n".encode(), sync=False, mode=_READABLE)

    def clear(self) -> None:
        """Remove what only a running daemon has."""
        for path in (self.socket, self.pid, self.http_port):
            path.unlink(missing_ok=True)

    def token(self) -> str:
        """Return the local token, making one the first time."""
        try:
            return read_private(self.local_token).decode().strip()
        except FileNotFoundError:
            token = new_token()
            write_atomic(self.local_token, f"{token}\n".encode())
            return token

    def running_pid(self) -> int | None:
        """Return the process that runs here, if one does."""
        try:
            self.lock().close()
        except PosthouseError as failure:
            if failure.code != "daemon_running":
                raise
            return int(self.pid.read_text()) if self.pid.exists() else None
        return None
