from __future__ import annotations

import asyncio
import warnings
from functools import partial

import pytest

from posthouse import Bus
from posthouse.bus import TooManyListenersWarning
from posthouse.model.envelope import Signal, SignalType
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.waiting import eventually


def typing(state: str = "on") -> Signal:
    return Signal(
        type=SignalType.TYPING, state=state, endpoint_subject="agent.one", timestamp="2024-01-01T00:00:00.000Z"
    )


async def test_signal_reaches_every_matching_handler(bus: Bus) -> None:
    seen: list[tuple[str, str, Signal]] = []

    def listen(pattern: str, subject: str, signal: Signal) -> None:
        seen.append((pattern, subject, signal))

    for pattern in ("agent.one", "agent.*", ">", "agent.two"):
        await bus.on_signal(pattern, partial(listen, pattern))
    await bus.signal("agent.one", typing())
    await eventually(lambda: len(seen) >= 3)
    assert sorted(pattern for pattern, _, _ in seen) == [">", "agent.*", "agent.one"]
    assert {(subject, signal.state) for _, subject, signal in seen} == {("agent.one", "on")}


async def test_throwing_handler_does_not_stop_the_others(bus: Bus) -> None:
    seen: list[Signal] = []

    async def throwing(_subject: str, _signal: Signal) -> None:
        raise RuntimeError("no")

    def throwing_too(_subject: str, _signal: Signal) -> None:
        raise RuntimeError("neither")

    await bus.on_signal("a", throwing)
    await bus.on_signal("a", throwing_too)
    await bus.on_signal("a", lambda _subject, signal: seen.append(signal))
    await bus.signal("a", typing())
    await eventually(lambda: len(seen) == 1)


async def test_signals_never_touch_disk(house: House, bus: Bus) -> None:
    done = asyncio.Event()
    await bus.register_endpoint("a.b")
    await bus.on_signal("a.b", lambda _subject, _signal: done.set())
    before = {path: path.stat().st_mtime_ns for path in house.root.rglob("*") if path.is_file()}
    for _ in range(20):
        await bus.signal("a.b", typing())
    await asyncio.wait_for(done.wait(), 10)
    after = {path: path.stat().st_mtime_ns for path in house.root.rglob("*") if path.is_file()}
    assert {path for path in after if "mailboxes" in path.parts} == {p for p in before if "mailboxes" in p.parts}
    assert {p: t for p, t in after.items() if p.name == "bus.db"} == {
        p: t for p, t in before.items() if p.name == "bus.db"
    }


async def test_unsubscribed_signal_handler_is_silent(bus: Bus) -> None:
    one: list[Signal] = []
    two: list[Signal] = []
    off = await bus.on_signal("a", lambda _subject, signal: one.append(signal))
    await bus.on_signal("a", lambda _subject, signal: two.append(signal))
    await off()
    await bus.signal("a", typing())
    await eventually(lambda: len(two) == 1)
    assert one == []


async def test_more_listeners_than_the_maximum_warn(house: House) -> None:
    bus = await house.bus(max_listeners=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            await bus.on_signal("a", lambda _subject, _signal: None)
    with pytest.warns(TooManyListenersWarning, match="4 signal handlers"):
        await bus.on_signal("a", lambda _subject, _signal: None)


@pytest.mark.parametrize("subject", ["", "a b", "a.>.b"])
async def test_bad_signal_subject_is_refused(bus: Bus, subject: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        await bus.signal(subject, typing())
    assert refused.value.code == "subject_invalid"
    with pytest.raises(PosthouseError):
        await bus.on_signal(subject, lambda _subject, _signal: None)
