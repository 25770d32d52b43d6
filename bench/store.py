"""The store compared with bare apsw: the same rows, the same counter, the same syncs.

The store commits through the group-commit writer, one caller at a time and with 64 callers in flight. Bare apsw writes
the same journal row and updates the same counter on one connection with SQLite's own checkpoints: one row per
transaction, and 64 rows per transaction. Both are durable against power loss at every commit.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from bench.comparison import Comparison, compare
from bench.floors import bare_database
from bench.scales import IN_FLIGHT
from posthouse.journal.append import SQL, JournalTransaction
from posthouse.journal.store import Store
from posthouse.model.clock import SystemClock
from posthouse.sqlite.connection import Durability, library_version
from posthouse.version import __version__

_BODY = {"changes": {"bench": "x" * 200}}  # a row of about 256 bytes together with the columns
_FIELDS = ("config.changed", "main", "bench", "bench")
_TEXT = msgspec.json.encode(_BODY).decode()


def measure_store(directory: Path, *, rounds: int, singles: int, batches: int) -> dict[str, Any]:
    """Compare the store with bare apsw in `directory` and return ratios, rates and settings."""
    runner, loop_name = _fastest_loop()
    with _store(directory / "ours.db") as store, _bare(directory / "bare.db") as bare, runner() as running:
        single = compare(
            "single",
            lambda: running.run(_ours(store, singles, 1)),
            lambda: _bare_rate(bare, singles, 1),
            rounds=rounds,
            required=0.6,
            aim=0.8,
        )
        many = compare(
            "in_flight_64",
            lambda: running.run(_ours(store, batches * IN_FLIGHT, IN_FLIGHT)),
            lambda: _bare_rate(bare, batches * IN_FLIGHT, IN_FLIGHT),
            rounds=rounds,
            required=0.45,
            aim=0.6,
        )
        settings = {"rounds": rounds, "singles": singles, "batches": batches, "loop": loop_name, "synchronous": "full"}
        return _report((single, many), settings, store.statistics())


def _report(comparisons: tuple[Comparison, ...], settings: dict[str, Any], store: dict[str, Any]) -> dict[str, Any]:
    return {
        "bench": "store",
        "results": {comparison.name: comparison.value() for comparison in comparisons},
        "settings": settings,
        "store": store,
        "versions": {
            "posthouse": __version__,
            "python": platform.python_version(),
            "apsw": apsw.apsw_version(),
            "sqlite": ".".join(map(str, library_version())),
        },
    }


def _work(tx: JournalTransaction) -> int:
    kind, mesh, actor, ref = _FIELDS
    return tx.append(kind, mesh=mesh, actor=actor, ref=ref, body=_BODY)


async def _ours(store: Store, items: int, callers: int) -> float:
    left = items

    async def call() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await store.writer.run(_work, is_short=True)

    started = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return items / (time.perf_counter() - started)


def _bare_rate(db: apsw.Connection, items: int, per_commit: int) -> float:
    seq = db.execute(SQL.head).get
    append, now_ns = SQL.append, SystemClock().wall_ns()
    started = time.perf_counter()
    for _ in range(items // per_commit):
        db.execute("BEGIN IMMEDIATE")
        for _ in range(per_commit):
            seq += 1
            db.execute(append, (seq, now_ns, *_FIELDS, _TEXT))
        db.execute("COMMIT")
    return items / (time.perf_counter() - started)


@contextmanager
def _store(path: Path) -> Iterator[Store]:
    store = Store(path, (), SystemClock(), durability=Durability.FULL)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _bare(path: Path) -> Iterator[apsw.Connection]:
    with _store(path):  # creates the tables
        pass
    with bare_database(path) as db:
        yield db


def _fastest_loop() -> tuple[Callable[[], asyncio.Runner], str]:
    """Return the event loop of the relay: uvloop if it is installed."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.Runner, "asyncio"
    return lambda: asyncio.Runner(loop_factory=uvloop.new_event_loop), "uvloop"
