"""A primary of PostgreSQL with a streaming standby, made with pg_basebackup from the same binaries."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.postgresql.server import SETTINGS, PostgresServer

_DATABASE = "store"
_STANDBY = "standby"
_PATIENCE_S = 60.0
_REPLICATED = {**SETTINGS, "wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on"}


class Replication:
    """Two servers; relays have the addresses of both, as an operator would give them."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self.primary = primary
        self.standby = standby

    @property
    def url(self) -> str:
        """The URL with both servers; a session goes to the first of them that is writable."""
        return f"postgresql://posthouse@/{_DATABASE}?host={self.primary.folder},{self.standby.folder}"

    def make_standby(self) -> None:
        """Copy the primary, and start the copy as its standby."""
        source = f"host={self.primary.folder} user=posthouse application_name={_STANDBY}"
        self.standby.run("pg_basebackup", "-D", str(self.standby.data), "-d", source, "-R", "-c", "fast")
        self.standby.start()

    def set_synchronous(self, *, is_on: bool) -> None:
        """Let commits wait for the standby from now on, or not any more."""
        names = _STANDBY if is_on else ""
        self.primary.admin(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.primary.admin("SELECT pg_reload_conf()")
        _until(self.primary, "SHOW synchronous_standby_names", names)
        if is_on:
            _until(self.primary, "SELECT sync_state FROM pg_stat_replication", "sync")

    def hold_standby(self) -> None:
        """Let the standby receive everything so far, and show nothing newer until `release_standby`."""
        self._until_caught_up()
        self.standby.admin("SELECT pg_wal_replay_pause()")
        _until(self.standby, "SELECT pg_get_wal_replay_pause_state()", "paused")

    def release_standby(self) -> None:
        """Let the standby catch up with the primary."""
        self.standby.admin("SELECT pg_wal_replay_resume()")
        self._until_caught_up()

    def _until_caught_up(self) -> None:
        with psycopg.connect(self.primary.url("postgres"), autocommit=True) as connection:
            (end,) = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone() or ("",)
        _until(self.standby, f"SELECT (pg_last_wal_replay_lsn() >= '{end}')::text", "true")

    def lose_primary(self) -> None:
        """Kill every process of the primary at once."""
        self.primary.stop(signal.SIGKILL)

    def promote(self) -> None:
        """Make the standby a primary."""
        self.standby.admin("SELECT pg_promote()")


def _until(server: PostgresServer, question: str, answer: str) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until_s:
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            if connection.execute(question.encode()).fetchone() == (answer,):
                return
        time.sleep(0.02)
    raise TimeoutError(f"{question} did not become {answer!r}")


@contextlib.contextmanager
def run_replication(installation: Path) -> Iterator[Replication]:
    """Run a primary and its standby, which is asynchronous."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _each in range(2):
            folder = Path(tempfile.mkdtemp(prefix="posthouse-pg-", dir="/tmp"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            servers.append(PostgresServer(installation, folder, _REPLICATED))
            installation = servers[0].installation
            stack.callback(servers[-1].stop, signal.SIGQUIT)
        pair = Replication(*servers)
        pair.primary.create()
        pair.primary.admin(f"CREATE DATABASE {_DATABASE}")
        pair.make_standby()
        yield pair
