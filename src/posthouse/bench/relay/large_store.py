"""A store with a million events, made through the store itself and kept between runs.

The events are well-formed and findable like any other; only their signatures are not made, because a store never looks
at them and signing a million takes longer than storing them. The folder's name holds a hash of the schema, so that
another schema gets a store of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from posthouse.journal.store import JOURNAL
from posthouse.keys import NodeKey
from posthouse.model.canonical import encode_canonical, event_id
from posthouse.model.clock import SystemClock
from posthouse.model.event import Event
from posthouse.relay.store.interface import EventRow, Unit
from posthouse.relay.store.rows import row_of
from posthouse.relay.store.sqlite import COMPONENTS, FILE_NAME, SqliteStore

AUTHORS = [NodeKey(bytes([number]) * 32).node for number in range(1, 101)]
KINDS = (1, 2, 3, 1_234)
TOPICS = 200
_BATCH = 500
_AHEAD = 8  # batches handed to the writer before one is waited for


async def large_store(count: int) -> Path:
    """Return the data directory of a relay whose store has so many events, making it if it is not there."""
    folder = Path(tempfile.gettempdir()) / f"posthouse-bench-{count}-{_schema()}"
    done = folder / "complete"
    if done.exists():
        return folder
    folder.mkdir(mode=0o700, exist_ok=True)
    for part in folder.glob(f"{FILE_NAME}*"):
        part.unlink()
    await _fill(folder / FILE_NAME, count)
    done.touch()
    return folder


async def _fill(path: Path, count: int) -> None:
    store = await asyncio.to_thread(SqliteStore, path, SystemClock())
    waiting: list[asyncio.Future[object]] = []
    for rows in _batches(count):
        waiting.append(store.submit(_adding(rows)))
        if len(waiting) >= _AHEAD:
            await waiting.pop(0)
    await asyncio.gather(*waiting)
    await asyncio.to_thread(store.close)


def _adding(rows: list[EventRow]) -> Callable[[Unit], object]:
    def work(unit: Unit) -> object:
        return unit.add_events(rows)

    return work


def _batches(count: int) -> Iterator[list[EventRow]]:
    begin_ns = SystemClock().wall_ns() - count * 1_000_000
    for start in range(0, count, _BATCH):
        yield [_row(number, begin_ns) for number in range(start, min(start + _BATCH, count))]


def _row(number: int, begin_ns: int) -> EventRow:
    author = AUTHORS[number * 7 % len(AUTHORS)]
    kind = KINDS[number % len(KINDS)]
    tags = (("t", f"topic-{number % TOPICS}"), ("n", str(number)))
    at_ns, content = begin_ns + number * 1_000_000, "x" * 200
    canonical = encode_canonical(author, at_ns, kind, tags, content)
    event = Event(
        id=event_id(canonical),
        pubkey=author,
        created_at_ns=at_ns,
        kind=kind,
        tags=tags,
        content=content,
        sig="0" * 128,
    )
    return row_of(event, canonical)


def _schema() -> str:
    digest = hashlib.sha256()
    for component in (JOURNAL, *COMPONENTS):
        for migration in component.migrations:
            digest.update(migration.encode())
    return digest.hexdigest()[:12]
