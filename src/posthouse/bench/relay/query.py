"""Stored queries over HTTP: pages of 500 events out of a large store, in several shapes."""

from __future__ import annotations

import statistics
import time
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from posthouse.bench.relay.large_store import AUTHORS, KINDS
from posthouse.bench.relay.process import RunningRelay
from posthouse.bench.relay.terms import PAGE, Scale
from posthouse.client import ClientOptions, Signer
from posthouse.client.relay_url import relay_at
from posthouse.client.requests import Requests
from posthouse.client.transport import Transport
from posthouse.keys import NodeKey
from posthouse.model.clock import SystemClock

_TAG = quote("#t")
_ALL_KINDS = ",".join(map(str, KINDS))
_MANY_AUTHORS = ",".join(quote(author) for author in AUTHORS[:50])
_MANY_TOPICS = ",".join(f"topic-{number}" for number in range(50))
#: what is asked for -> query parameters; each has at least 500 matches
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


async def measure(relay: RunningRelay, scale: Scale) -> dict[str, Any]:
    """Return the median time of a page for each shape, and the worst of them."""
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
    for _ in range(count + 3):  # three to warm up
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
