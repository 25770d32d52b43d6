"""The directories of a daemon: one for the process, and inside it one for each mesh.

    0700  .
    0600  daemon.lock pid sock local_token mcp_token agents.db http.port daemon.log schema_version restoring
    0700  <mesh>/
    0600  keypair.json identity.json host_fingerprint.json roster.json outbox.db inbox.db config.toml daemon.lock
          schema_version unreconciled

Invariant: only the lock decides whether a daemon runs here; pid and sock are left-overs if no process holds it. The
lock of a mesh also keeps out a daemon of version 1, which had one process and one directory for each mesh. If you
change the layout: 1. raise SCHEMA_VERSION if an older daemon could not read it, 2. `upgrade`, 3. docs/explain.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from posthouse.files import fsync_dir, private_dir, read_private, write_atomic
from posthouse.keys import new_token
from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import is_mesh_name, validate_served_mesh_name
from posthouse.sqlite.store_lock import StoreLock

SCHEMA_VERSION = 2
_LOCK_TRIES, _LOCK_PAUSE_S = 10, 0.02  # a command that asks if a daemon runs holds the lock for a moment
_PROCESS_FILES = ("sock", "pid", "http.port")
#: files of a mesh that version 1 kept next to those of the process
_MESH_FILES = ("config.toml", "roster.json", "inbox.db", "outbox.db", "host_fingerprint.json", "keypair.json")
_STORE_SUFFIXES = ("", "-wal", "-shm", ".lock")


class MeshDirectory:
    """The paths of one mesh of a daemon."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.key = root / "keypair.json"
        self.host_fingerprint = root / "host_fingerprint.json"
        self.roster = root / "roster.json"
        self.outbox = root / "outbox.db"
        self.inbox = root / "inbox.db"
        self.config = root / "config.toml"
        #: present after a restore, until the stores were compared with the relay
        self.unreconciled = root / "unreconciled"
        #: which mesh and key the directory is for
        self.identity = root / "identity.json"

    @property
    def mesh(self) -> str:
        """The name of the mesh."""
        return self.root.name

    @property
    def is_persistent(self) -> bool:
        """True if a key kept on disk was used here, even if it is lost now."""
        return any(path.exists() for path in (self.key, self.identity, self.host_fingerprint))

    def prepare(self) -> None:
        """Create the directory, or check that it is private and of a version that this daemon knows."""
        private_dir(self.root)
        if _read_version(self.root) < SCHEMA_VERSION:
            _write_version(self.root)

    def lock(self) -> StoreLock:
        """Lock the mesh for this process; raises daemon_running."""
        return _lock(self.root)


class DaemonDirectory:
    """The paths of one daemon process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pid = root / "pid"
        self.socket = root / "sock"
        self.local_token = root / "local_token"
        self.tools_token = root / "mcp_token"
        self.agents = root / "agents.db"
        self.http_port = root / "http.port"
        self.log = root / "daemon.log"
        #: present while a restore puts files here: the names of its meshes
        self.restoring = root / "restoring"

    def mesh(self, name: str) -> MeshDirectory:
        """Return the directory of a mesh; raises mesh_name_reserved."""
        return MeshDirectory(self.root / validate_served_mesh_name(name))

    def meshes(self) -> list[str]:
        """Return the meshes of this home, by their directories."""
        if not self.root.is_dir():
            return []
        names = sorted(path.name for path in self.root.iterdir() if is_mesh_name(path.name) and path.is_dir())
        found = [MeshDirectory(self.root / name) for name in names]
        return [each.mesh for each in found if any(path.exists() for path in (each.key, each.config, each.outbox))]

    def prepare(self) -> None:
        """Create the directory, or check that it is private and of a version that this daemon knows."""
        private_dir(self.root)
        _read_version(self.root)

    @property
    def is_persistent(self) -> bool:
        """True if a key kept on disk was used in any mesh, or in a directory of version 1."""
        return MeshDirectory(self.root).is_persistent or any(self.mesh(name).is_persistent for name in self.meshes())

    def lock(self) -> StoreLock:
        """Lock the directory for this process; raises daemon_running."""
        return _lock(self.root)

    def write_pid(self) -> None:
        """Write the id of this process."""
        write_atomic(self.pid, f"{os.getpid()}\n".encode(), sync=False)

    def write_port(self, port: int) -> None:
        """Write the port on loopback."""
        write_atomic(self.http_port, f"{port}\n".encode(), sync=False)

    def clear(self) -> None:
        """Remove the files that only a running daemon has."""
        for name in _PROCESS_FILES:
            (self.root / name).unlink(missing_ok=True)

    def token(self) -> str:
        """Return the local token; create it the first time."""
        return _keep_token(self.local_token)

    def mcp_token(self) -> str:
        """Return the token for MCP over HTTP, which opens the tools only; create it the first time."""
        return _keep_token(self.tools_token)

    def upgrade(self, mesh: str) -> None:
        """Bring a directory of version 1 to this version; the caller holds its lock. Safe to repeat after a crash.

        Version 1 had a directory for each mesh with everything in it: below the home's `daemon/`, or given with
        `--dir`. `mesh` is the mesh of a directory that was given. The token, the log and every store stay.
        """
        if _read_version(self.root) == SCHEMA_VERSION:
            return
        if any((self.root / name).exists() for name in _MESH_FILES):
            target = private_dir(self.root / mesh)
            for name in _MESH_FILES:
                _move(self.root, target, name)
            fsync_dir(target)
        for name in [mesh, *self.meshes()]:
            self._adopt(self.root / name)
        _write_version(self.root)

    def upgrade_stopped(self, mesh: str) -> None:
        """Bring the directory of a daemon that does not run to this version; raises daemon_running."""
        if _read_version(self.root) == SCHEMA_VERSION:
            return
        lock = self.lock()
        try:
            self.upgrade(mesh)
        finally:
            lock.close()

    def _adopt(self, former: Path) -> None:
        """Take over the files of the process from a directory of version 1."""
        if not former.is_dir() or _read_version(former) == SCHEMA_VERSION:
            return
        _lock(former).close()  # a daemon of version 1 may still run there
        for name in _PROCESS_FILES:
            (former / name).unlink(missing_ok=True)
        for name in ("local_token", "mcp_token", "daemon.log"):
            path = former / name
            if path.exists() and not (self.root / name).exists():
                path.rename(self.root / name)
        for name in ("local_token", "mcp_token"):  # no daemon accepts them any more
            (former / name).unlink(missing_ok=True)
        _write_version(former)


def _move(source: Path, target: Path, name: str) -> None:
    """Move a file with the files that belong to a store; a store is complete once none is left behind."""
    for suffix in _STORE_SUFFIXES:
        path = source / f"{name}{suffix}"
        if path.exists():
            path.rename(target / path.name)


def _read_version(root: Path) -> int:
    """Return the version of a directory, 0 for a new one; raises store_schema_newer."""
    try:
        found = int((root / "schema_version").read_text())
    except FileNotFoundError:
        return 0
    except ValueError as fault:
        raise error("store_not_ours", path=str(root), expected="daemon", reason=str(fault)) from fault
    if found > SCHEMA_VERSION:
        raise error("store_schema_newer", path=str(root), component="daemon", found=found, known=SCHEMA_VERSION)
    return found


def _write_version(root: Path) -> None:
    write_atomic(root / "schema_version", f"{SCHEMA_VERSION}\n".encode())


def _lock(root: Path) -> StoreLock:
    for tries_left in reversed(range(_LOCK_TRIES)):
        try:
            return StoreLock(root / "daemon", exclusive=True)
        except PosthouseError as failure:
            if failure.code != "store_in_use":
                raise
            if not tries_left:
                raise error("daemon_running", directory=str(root)) from failure
            time.sleep(_LOCK_PAUSE_S)
    raise AssertionError("the last try returns or raises")


def _keep_token(path: Path) -> str:
    try:
        return read_private(path).decode().strip()
    except FileNotFoundError:
        token = new_token()
        write_atomic(path, f"{token}\n".encode())
        return token
