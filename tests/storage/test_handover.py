"""A wake-up signal reaches its receiver, is kept until then, and counts once however often it was sent."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from posthouse.storage.handover import WakeUp

TIMEOUT_S = 30.0


@pytest.fixture(params=["event counter", "pipe"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the event counter of Linux, and with the pipe of other systems."""
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd")


def test_notify_wakes_a_thread_that_waits() -> None:
    wake_up, is_awake = WakeUp(), threading.Event()

    def wait() -> None:
        if wake_up.wait(TIMEOUT_S):
            is_awake.set()

    thread = threading.Thread(target=wait)
    thread.start()
    wake_up.notify()
    thread.join(TIMEOUT_S)
    assert is_awake.is_set()


def test_signal_before_the_wait_is_kept_and_several_count_as_one() -> None:
    wake_up = WakeUp()
    wake_up.notify()
    wake_up.notify()
    assert wake_up.wait(TIMEOUT_S)
    assert not wake_up.wait(0)


def test_wait_without_a_signal_times_out() -> None:
    assert not WakeUp().wait(0.001)


def test_clear_consumes_a_signal_and_does_nothing_without_one() -> None:
    wake_up = WakeUp()
    wake_up.clear()
    wake_up.notify()
    wake_up.clear()
    assert not wake_up.wait(0)


async def test_notify_makes_the_descriptor_readable_for_an_event_loop() -> None:
    wake_up, loop = WakeUp(), asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(wake_up.fileno(), is_readable.set)
    try:
        await asyncio.to_thread(wake_up.notify)
        await asyncio.wait_for(is_readable.wait(), TIMEOUT_S)
    finally:
        loop.remove_reader(wake_up.fileno())


def test_dropped_wake_up_leaves_no_open_file() -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    for _ in range(10):
        WakeUp().notify()
    assert open_files() == before


def test_notify_never_blocks_when_the_receiver_stays_away() -> None:
    wake_up = WakeUp()
    for _ in range(20_000):  # more than a pipe takes
        wake_up.notify()
    assert wake_up.wait(0)
