"""The time limit of a handler: it counts from the start of its message, is its own, and leaves no timer behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from posthouse.bus.running import Deadlines
from posthouse.model.envelope import Envelope
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.limits import reliability, settled
from tests.bus.listening import Recorder
from tests.bus.waiting import bounded, eventually

_LIMIT_S = 3_600


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.TimerHandle]:
    """The timers of handlers."""
    loop = asyncio.get_running_loop()
    call_at, found = loop.call_at, list[asyncio.TimerHandle]()

    def noting(when: float, callback: Callable[..., object], *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        handle = call_at(when, callback, *arguments, **options)
        if isinstance(getattr(callback, "__self__", None), Deadlines):
            found.append(handle)
        return handle

    monkeypatch.setattr(loop, "call_at", noting)
    return found


async def test_handled_messages_share_one_timer_that_ends_with_the_bus(
    house: House, timers: list[asyncio.TimerHandle]
) -> None:
    bus, got = await house.bus(reliability=reliability(), handler_timeout_s=_LIMIT_S), Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    for number in range(3):
        await bus.publish("a.b", number, from_="c")
    await got.wait(3)
    await settled(bus, "a.b")
    assert [timer.cancelled() for timer in timers] == [False]
    await bus.close()
    assert [timer.cancelled() for timer in timers] == [True]


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


async def forever(_envelope: Envelope) -> None:
    await asyncio.Event().wait()


async def test_subscription_may_set_its_own_limit(house: House) -> None:
    bus = await house.bus(reliability=reliability())
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", forever, handler_timeout_s=0.05)
    await bus.publish("a.b", 1, from_="c")
    await settled(bus, "a.b")
    (letter,) = await bus.dead_letters()
    assert letter.reason == "handler exceeded 0.05 s"


async def test_handler_with_time_left_is_not_stopped_by_the_limit_of_another(house: House) -> None:
    bus, done = await house.bus(reliability=reliability()), asyncio.Event()
    stopped, finished = asyncio.Event(), asyncio.Event()

    async def patient(_envelope: Envelope) -> None:
        await done.wait()
        finished.set()

    async def late(_envelope: Envelope) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", patient)
    await bus.subscribe("a.b", late, handler_timeout_s=0.05)
    await bus.publish("a.b", 1, from_="c")
    await bounded(stopped)
    assert await bus.dead_letters() == []
    done.set()
    await settled(bus, "a.b")
    assert finished.is_set()
    (letter,) = await bus.dead_letters()
    assert letter.reason == "handler exceeded 0.05 s"


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "5", True])
async def test_limit_that_is_no_positive_number_is_refused(house: House, limit: Any) -> None:
    bus = await house.bus()
    with pytest.raises(PosthouseError) as refused:
        await bus.subscribe("a.b", forever, handler_timeout_s=limit)
    assert refused.value.code == "value_invalid"


async def test_work_that_takes_long_is_logged_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.bus.handlers.SLOW_AFTER_S", 0.02)
    bus, release = await house.bus(reliability=reliability()), asyncio.Event()

    async def slow(_envelope: Envelope) -> None:
        await release.wait()

    await bus.register_endpoint("a.b")
    for _ in range(2):
        await bus.subscribe("a.b", slow)
    with capture_logs() as logs:
        sent = await bus.publish("a.b", 1, from_="c")
        await eventually(lambda: logs)
        release.set()
        await settled(bus, "a.b")
    (warning,) = logs
    assert (warning["event"], warning["id"], warning["timeout_s"]) == ("handler_is_slow", sent.message_id, 900)
    assert await bus.dead_letters() == []
