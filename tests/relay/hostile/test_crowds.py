"""Crowds: many idle connections, live filters and short connections cost little and leave nothing behind."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from posthouse.relay.process import raise_descriptor_limit
from tests.relay.edge import Author, Edge, Stream

CROWD = 500


@pytest.fixture(autouse=True, scope="module")
def descriptors() -> Iterator[None]:
    """Descriptors for both ends of each connection, as a relay has them: a login shell often has 1,024."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def open_many(edge: Edge, stack: AsyncExitStack, count: int) -> list[Stream]:
    gate = asyncio.Semaphore(50)

    async def one() -> Stream:
        async with gate:
            return await stack.enter_async_context(edge.stream(Author()))

    return list(await asyncio.gather(*(one() for _ in range(count))))


async def publish_timed(edge: Edge, author: Author, count: int) -> float:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await edge.publish(*(author.event(content=str(number)) for number in range(count)))
    return loop.time() - started


async def test_five_hundred_idle_connections_do_not_slow_publishing(edge: Edge, author: Author) -> None:
    await publish_timed(edge, author, 500)
    alone = min([await publish_timed(edge, author, 500) for _ in range(3)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with AsyncExitStack() as stack:
        streams = await open_many(edge, stack, CROWD)
        assert len(edge.server.context.connections) == CROWD
        crowded = min([await publish_timed(edge, author, 500) for _ in range(3)])
        assert (await edge.get("/healthz")).status == 200
        await streams[-1].send("COUNT", "c")
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < CROWD * 400  # both ends of each connection live in this process
    assert crowded < 3 * alone + 0.5
    async with asyncio.timeout(20):
        while edge.server.context.connections:  # until the relay has seen all clients disconnect
            await edge.get("/healthz")


async def test_five_hundred_live_filters_are_not_five_hundred_comparisons(edge: Edge, author: Author) -> None:
    async with edge.stream(author) as stream:
        for number in range(CROWD):
            await stream.send("REQ", f"s{number}", {"limit": 0}, {"kinds": [1], "#t": [f"topic-{number}"]})
            await stream.expect("EOSE")
        live = edge.server.context.live
        assert len(live) == CROWD
        before = live.comparisons
        await edge.publish(*(author.event(tags=[("t", f"topic-{number}")]) for number in range(CROWD)))
        got = [(await stream.expect("EVENT"))[0] for _ in range(CROWD)]
        assert sorted(got) == sorted(f"s{number}" for number in range(CROWD))
        assert live.comparisons - before == CROWD
    async with asyncio.timeout(20):
        while len(edge.server.context.live):
            await edge.get("/healthz")


async def test_hundred_subscribers_get_every_event_in_order(edge: Edge, author: Author) -> None:
    async with AsyncExitStack() as stack:
        streams = await open_many(edge, stack, 100)
        for stream in streams:
            await stream.send("REQ", "live", {"limit": 0}, {"kinds": [1]})
            await stream.expect("EOSE")
        await edge.publish(*(author.event(content=str(number)) for number in range(300)))
        for stream in streams:
            assert [(await stream.expect("EVENT"))[1]["content"] for _ in range(300)] == [str(n) for n in range(300)]
