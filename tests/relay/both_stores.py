"""Run tests on every store: the fixture `each_store`, which the conftest of a folder uses for all of its tests.

On PostgreSQL each data directory of a test has a database of its own, so that a relay which starts again finds its
store, and several relays of one test have several. A test that looks into relay.db, starts a relay for each of many
examples, or needs thousands of commits one after the other is marked `sqlite`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from posthouse.model.clock import Clock
from posthouse.model.errors import Fatal
from posthouse.relay import engine
from posthouse.relay.store.protocol import RelayStore
from tests.postgresql.server import PostgresServer

STORES = ("sqlite", "postgresql")
_RULES = {
    "the journal has a gap": (
        "SELECT count(*) FROM (SELECT seq, lag(seq) OVER (ORDER BY seq) AS before FROM journal) AS j"
        " WHERE seq != before + 1"
    ),
    "a counter of a queue is wrong": (
        "SELECT count(*) FROM mailboxes AS m WHERE m.open_rows != (SELECT count(*) FROM deliveries AS d"
        " WHERE d.mailbox = m.mailbox AND d.closed_at_ns IS NULL) OR m.parked_rows != (SELECT count(*) FROM deliveries"
        " AS d WHERE d.mailbox = m.mailbox AND d.state IN ('rejected', 'dead')) OR m.confirmation_ids != (SELECT"
        " coalesce(sum(w.ids), 0) FROM waiting_confirmations AS w WHERE w.mailbox = m.mailbox)"
    ),
    "a delivery has no message": (
        "SELECT count(*) FROM deliveries AS d LEFT JOIN events AS e ON e.seq = d.seq AND e.id = d.id"
        " LEFT JOIN pinch_envelopes AS p ON p.seq = d.seq AND p.id = d.id WHERE e.seq IS NULL AND p.seq IS NULL"
    ),
    "the usage of a mesh is wrong": (
        "SELECT count(*) FROM (SELECT mesh, count(*) AS events, sum(length(raw)) AS bytes FROM events"
        " WHERE raw IS NOT NULL GROUP BY mesh) AS f FULL JOIN current_usage AS u USING (mesh)"
        " WHERE coalesce(f.events, 0) != coalesce(u.events, 0) OR coalesce(f.bytes, 0) != coalesce(u.bytes, 0)"
    ),
    "a record of an event has no event": (
        "SELECT count(*) FROM journal AS j LEFT JOIN events AS e ON e.seq = j.seq"
        " WHERE j.type IN ('event.accepted', 'message.accepted', 'confirmation.accepted') AND e.seq IS NULL"
    ),
}


class Databases:
    """The database of each data directory of one test."""

    current: Databases | None = None

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._names: dict[Path, str] = {}
        self._open_store = engine.open_store

    def url(self, data_dir: Path) -> str:
        """Return the URL of the database of a data directory."""
        if data_dir not in self._names:
            self._names[data_dir] = self._server.take_database()
        return self._server.url(self._names[data_dir])

    def open_store(
        self,
        settings: engine.EngineSettings,
        clock: Clock,
        on_fatal: Callable[[Fatal], None],
        vfs: str | None = None,
    ) -> RelayStore:
        """Open the store of a data directory in its database."""
        return self._open_store(replace(settings, store=self.url(settings.data_dir)), clock, on_fatal, vfs)

    def give_back(self) -> None:
        """Empty all of them for the next test."""
        for name in self._names.values():
            self._server.give_back(name)


def store_of(data_dir: Path) -> str | None:
    """Return the URL of the store for a data directory in the present test, None for a SQLite file."""
    return None if Databases.current is None else Databases.current.url(data_dir)


def server_findings(url: str) -> list[str]:
    """Return what is wrong with a store on PostgreSQL."""
    with psycopg.connect(url) as connection:
        return [rule for rule, statement in _RULES.items() if connection.execute(statement.encode()).fetchone() != (0,)]


@pytest.fixture(params=STORES)
def each_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the test on each store; the name of the store."""
    if request.param == "sqlite":
        yield request.param
        return
    if request.node.get_closest_marker("sqlite"):
        pytest.skip("looks into the file of SQLite, or is long")
    databases = Databases(request.getfixturevalue("postgres"))
    monkeypatch.setattr(engine, "open_store", databases.open_store)
    monkeypatch.setattr(Databases, "current", databases)
    yield request.param
    databases.give_back()
