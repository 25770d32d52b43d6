"""PostgreSQL: a table as log, a table as queue (SKIP LOCKED), and rows with an expiry as locks.

Advisory locks are left out: they vanish with the session, so they are not durable as the locks of the others are.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.peers.server_process import (
    LOOPBACK,
    ServerProcess,
    find_server,
    free_ports,
    run_unprivileged,
    server_version,
)
from bench.peers.works import BODY, READER_BATCH, Configuration, Contestant, Operation, Work
from bench.scales import IN_FLIGHT, QUEUE
from posthouse.storage.sql_files import Statements

_SQL = Statements("bench.peers", "postgresql.sql")
_DEBIAN = Path("/usr/lib/postgresql")
_USER = "bench"
_ROW = (BODY.encode(),)
_LOCK = ("lock", "owner")


def _program(name: str) -> Path | None:
    """Return a program of the newest PostgreSQL that Debian installed, or of the PATH."""
    newest_first = sorted(_DEBIAN.glob("[0-9]*/bin"), key=lambda each: -int(each.parent.name))
    return find_server(name, *newest_first)


class PostgreSql(Contestant):
    """One server and one connection of psycopg."""

    name = "PostgreSQL"
    client_modules = ("psycopg",)

    def missing(self) -> list[str]:
        return [f"program {name}" for name in ("initdb", "postgres") if _program(name) is None] + super().missing()

    async def start(self, folder: Path) -> Configuration:
        import psycopg

        postgres, initdb = _program("postgres"), _program("initdb")
        assert postgres is not None and initdb is not None
        data = folder / "data"
        make: list[str | Path] = [initdb, "-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        run_unprivileged(make, folder)
        (port,) = free_ports(1)
        flags = [f"--port={port}", f"--listen_addresses={LOOPBACK}", f"--unix_socket_directories={folder}"]
        server = ServerProcess([postgres, "-D", data, *flags], folder, stop_signal=signal.SIGINT, avoids_root=True)
        self._stack.callback(server.stop)
        address = f"host={LOOPBACK} port={port} user={_USER} dbname=postgres"
        connect = partial(psycopg.AsyncConnection.connect, address, autocommit=True)
        self._connection: Any = await server.wait_ready(connect, psycopg.OperationalError)
        self._stack.push_async_callback(self._connection.close)
        await self._connection.execute(_SQL.schema)
        found = await (await self._connection.execute(_SQL.settings)).fetchall()
        durability = "synchronous_commit on: the write-ahead log is synced before the answer"
        client = f"psycopg {psycopg.__version__}, implementation {psycopg.pq.__impl__}"
        return Configuration(server_version(postgres, "--version"), durability, client, dict(found))

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {
            Work.PUBLISH: [Operation(self.name, self._publish)],
            Work.PUBLISH_64: [Operation(self.name, self._publish_64)],
            Work.LOCK: [Operation(self.name, self._lock)],
            Work.DRAIN: [Operation(self.name, self._drain, self._fill)],
        }

    async def _publish(self) -> None:
        await self._connection.execute(_SQL.publish, _ROW)

    async def _publish_64(self) -> None:
        await self._insert(_SQL.publish, IN_FLIGHT)

    async def _lock(self) -> None:
        if (await self._connection.execute(_SQL.lock, _LOCK)).rowcount != 1:
            raise RuntimeError("PostgreSQL did not grant a free lock")
        await self._connection.execute(_SQL.unlock, _LOCK)

    async def _fill(self) -> None:
        await self._insert(_SQL.enqueue, QUEUE)

    async def _insert(self, statement: str, count: int) -> None:
        async with self._connection.transaction(), self._connection.cursor() as cursor:
            await cursor.executemany(statement, [_ROW] * count)

    async def _drain(self) -> None:
        read = 0
        while read < QUEUE:
            taken = await self._connection.execute(_SQL.take, (READER_BATCH,))
            read += len(await taken.fetchall())
