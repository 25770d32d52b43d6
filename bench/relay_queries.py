"""Stored queries over HTTP: pages of 500 events from a store of a million events, with several filters.

The store is filled through the store interface and kept between runs, in a folder named after a hash of the schema.
Its events are well-formed but not signed: a store never verifies, and signing a million events takes longer than
storing them.
"""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from bench.processes import RelayProcess
from bench.scales import PAGE, RelayScale
from posthouse.client import ClientOptions, Signer
from posthouse.client.relay_url import relay_at
from posthouse.client.transport import Requests, Transport
from posthouse.journal.store import JOURNAL
from posthouse.keys import NodeKey, keyfile
from posthouse.model.clock import SystemClock
from posthouse.model.event import Event, encode_canonical, event_id
from posthouse.relay.store.event_rows import EventRow, event_row
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite.store import COMPONENTS, FILE_NAME, SqliteStore

AUTHORS = [NodeKey(bytes([number]) * 32).node for number in range(1, 101)]
KINDS = (1, 2, 3, 1_234)
TOPICS = 200
_BATCH = 500
_AHEAD = 8  # batches submitted to the writer before the first is awaited


async def large_store(count: int) -> Path:
    """Return the data directory of a relay with this many events, and create it if it does not exist."""
    folder = Path(tempfile.gettempdir()) / f"posthouse-bench-{count}-{_schema()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    keyfile.load_or_create(folder / "key.json")
    done = folder / "complete"
    if done.exists():
        return folder
    for part in folder.glob(f"{FILE_NAME}*"):
        part.unlink()
    await _fill(folder / FILE_NAME, count)
    done.touch()
    return folder


async def _fill(path: Path, count: int) -> None:
    store = await asyncio.to_thread(SqliteStore, path, SystemClock())
    waiting: list[asyncio.Future[object]] = []
    for rows in _batches(count):
        waiting.append(store.submit(_add_events(rows)))
        if len(waiting) >= _AHEAD:
            await waiting.pop(0)
    await asyncio.gather(*waiting)
    await asyncio.to_thread(store.close)


def _add_events(rows: list[EventRow]) -> Callable[[Unit], object]:
    def work(unit: Unit) -> object:
        return unit.add_events(rows)

    return work


def _batches(count: int) -> Iterator[list[EventRow]]:
    start_ns = SystemClock().wall_ns() - count * 1_000_000
    for start in range(0, count, _BATCH):
        yield [_row(number, start_ns) for number in range(start, min(start + _BATCH, count))]


def _row(number: int, start_ns: int) -> EventRow:
    author = AUTHORS[number * 7 % len(AUTHORS)]
    kind = KINDS[number % len(KINDS)]
    tags = (("t", f"topic-{number % TOPICS}"), ("n", str(number)))
    at_ns, content = start_ns + number * 1_000_000, "x" * 200
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
    return event_row(event, canonical)


def _schema() -> str:
    digest = hashlib.sha256()
    for component in (JOURNAL, *COMPONENTS):
        for migration in component.migrations:
            digest.update(migration.encode())
    return digest.hexdigest()[:12]


_TAG = quote("#t")
_ALL_KINDS = ",".join(map(str, KINDS))
_MANY_AUTHORS = ",".join(quote(author) for author in AUTHORS[:50])
_MANY_TOPICS = ",".join(f"topic-{number}" for number in range(50))
#: name -> query parameters; each query has at least 500 matches
SHAPES = {
    "newest": "order=desc",
    "oldest": "order=asc",
    "kind": "kinds=1234&order=desc",
    "author": f"authors={quote(AUTHORS[4])}&order=desc",
    "tag": f"{_TAG}=topic-8&order=desc",
    "kind_and_author": f"kinds=1&authors={quote(AUTHORS[0])},{quote(AUTHORS[20])},{quote(AUTHORS[40])}&order=desc",
    "kind_and_tag": f"kinds=1&{_TAG}=topic-8&order=asc",
    "kinds": f"kinds={_ALL_KINDS}&order=desc",
    "authors": f"authors={_MANY_AUTHORS}&order=desc",
    "tags": f"{_TAG}={_MANY_TOPICS}&order=desc",
    "kinds_and_tags": f"kinds=1,2&{_TAG}={_MANY_TOPICS}&order=desc",
    "authors_and_tags": f"authors={_MANY_AUTHORS}&{_TAG}={_MANY_TOPICS}&order=asc",
}


async def measure_queries(relay: RelayProcess, scale: RelayScale) -> dict[str, Any]:
    """Return the median time of a page for each filter, and the largest of them."""
    transport = Transport(relay_at(f"{relay.host}:{relay.port}"), ClientOptions())
    requests = Requests(transport, Signer(NodeKey.generate(), SystemClock()), lambda _: None)
    token = await requests.token()
    headers = {"Authorization": f"Bearer {token}"}
    shapes: dict[str, Any] = {}
    try:
        for name, query in SHAPES.items():
            url = URL(f"{transport.url.origin}/v1/events?{query}&limit={PAGE}", encoded=True)
            shapes[name] = await _time(transport.session, url, headers, scale.queries)
    finally:
        await transport.close()
    return {"p50_ms": max(shape["p50_ms"] for shape in shapes.values()), "shapes": shapes}


async def _time(session: aiohttp.ClientSession, url: URL, headers: dict[str, str], count: int) -> dict[str, Any]:
    times: list[float] = []
    events = 0
    for _ in range(count + 3):  # three warm-up requests
        started = time.perf_counter()
        async with session.get(url, headers=headers) as response:
            data = await response.read()
        times.append((time.perf_counter() - started) * 1_000)
        events = data.count(b'"created_at_ns":')
        if response.status != 200:
            raise RuntimeError(data.decode())
    ordered = sorted(times[3:])
    return {
        "p50_ms": round(statistics.median(ordered), 2),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)], 2),
        "events": events,
    }
