"""One timer for all messages of an endpoint: each has its whole time, none has more, and nothing outlives the bus."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

import pytest

from posthouse.bus.handlers import Deadline
from tests.bus.house import House
from tests.bus.limits import reliability
from tests.bus.listening import Recorder
from tests.bus.waiting import bounded


def deadline() -> Deadline:
    return Deadline(asyncio.get_running_loop(), contextvars.copy_context())


async def ring_of(over: Deadline, limit_s: float) -> float:
    """Set the deadline and return when it rang, in seconds from now."""
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    start = loop.time()
    over.set(limit_s, rung.set)
    await bounded(rung)
    return loop.time() - start


async def test_deadline_rings_when_its_time_is_over_and_once() -> None:
    over, rung = deadline(), list[int]()
    assert await ring_of(over, 0.02) >= 0.02
    over.set(0.01, lambda: rung.append(1))
    assert await ring_of(deadline(), 0.05) >= 0.05
    assert rung == [1]


async def test_later_limit_has_its_whole_time_although_the_timer_was_set_before() -> None:
    over, first = deadline(), list[int]()
    over.set(0.03, lambda: first.append(1))
    await ring_of(deadline(), 0.02)
    over.clear()
    assert await ring_of(over, 0.03) >= 0.03
    assert first == []


async def test_cleared_and_closed_deadlines_call_nobody() -> None:
    called: list[str] = []
    cleared, closed = deadline(), deadline()
    cleared.set(0.01, lambda: called.append("cleared"))
    closed.set(0.01, lambda: called.append("closed"))
    cleared.clear()
    closed.close()
    await ring_of(deadline(), 0.03)
    assert called == []


async def test_closed_bus_leaves_no_timer_behind(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    call_at, limits = loop.call_at, list[asyncio.TimerHandle]()

    def noting(when: float, callback: Callable[..., object], *arguments: Any, **terms: Any) -> asyncio.TimerHandle:
        handle = call_at(when, callback, *arguments, **terms)
        if when > loop.time() + 1_000:
            limits.append(handle)
        return handle

    monkeypatch.setattr(loop, "call_at", noting)
    bus = await house.bus(reliability=reliability(), handler_timeout_s=3_600)
    await bus.register_endpoint("a.b")
    got = Recorder()
    await bus.subscribe("a.b", got)
    for number in range(10):
        await bus.publish("a.b", number, from_="c")
    await got.wait(10)
    assert [handle.cancelled() for handle in limits] == [False]
    await bus.close()
    assert [handle.cancelled() for handle in limits] == [True]
