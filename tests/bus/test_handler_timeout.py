"""The time limit of a handler: it counts from the start of its message, and leaves no timer behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.bus.house import House
from tests.bus.limits import reliability, settled
from tests.bus.listening import Recorder
from tests.bus.waiting import bounded

_LIMIT_S = 3_600


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.TimerHandle]:
    """The timers of handlers that run with _LIMIT_S."""
    loop = asyncio.get_running_loop()
    call_at, found = loop.call_at, list[asyncio.TimerHandle]()

    def noting(when: float, callback: Callable[..., object], *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        handle = call_at(when, callback, *arguments, **options)
        if when > loop.time() + _LIMIT_S / 2:
            found.append(handle)
        return handle

    monkeypatch.setattr(loop, "call_at", noting)
    return found


async def test_handled_message_leaves_no_timer_behind(house: House, timers: list[asyncio.TimerHandle]) -> None:
    bus, got = await house.bus(reliability=reliability(), handler_timeout_s=_LIMIT_S), Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    for number in range(3):
        await bus.publish("a.b", number, from_="c")
    await got.wait(3)
    await settled(bus, "a.b")
    assert [timer.cancelled() for timer in timers] == [True, True, True]


async def test_closed_bus_leaves_no_timer_of_a_running_handler_behind(
    house: House, timers: list[asyncio.TimerHandle]
) -> None:
    bus, entered = await house.bus(reliability=reliability(), handler_timeout_s=_LIMIT_S), asyncio.Event()

    async def slow(_envelope: object) -> None:
        entered.set()
        await asyncio.Event().wait()

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", slow)
    await bus.publish("a.b", 1, from_="c")
    await bounded(entered)
    assert [timer.cancelled() for timer in timers] == [False]
    await bus.close()
    assert [timer.cancelled() for timer in timers] == [True]


async def test_message_that_waits_for_a_slow_one_still_has_its_whole_time(house: House) -> None:
    bus, handled = await house.bus(reliability=reliability(), handler_timeout_s=0.3), list[int]()

    async def slow(envelope: Any) -> None:
        await asyncio.sleep(0.2)
        handled.append(envelope.payload)

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", slow)
    for number in range(2):
        await bus.publish("a.b", number, from_="c")
    await settled(bus, "a.b")
    assert handled == [0, 1]
    assert await bus.dead_letters() == []


async def test_async_handler_that_cannot_be_called_fails_its_message_and_not_the_endpoint(house: House) -> None:
    bus = await house.bus(reliability=reliability())

    async def takes_nothing() -> None:
        """Raise TypeError when called with a message."""

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", takes_nothing)  # type: ignore[arg-type]
    for number in range(2):
        await bus.publish("a.b", number, from_="c")
    await settled(bus, "a.b")
    assert ["TypeError" in letter.reason for letter in await bus.dead_letters()] == [True, True]
