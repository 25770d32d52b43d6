"""A bell wakes who waits for it, keeps rings that nobody heard, and counts several as one."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from posthouse.sqlite.handover import WakeUp

PATIENCE_S = 30.0


@pytest.fixture(params=["event counter", "pipe"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the event counter of Linux, and with the pipe of other systems."""
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd")


def test_ring_wakes_a_thread_that_waits() -> None:
    bell, heard = WakeUp(), threading.Event()

    def wait() -> None:
        if bell.wait(PATIENCE_S):
            heard.set()

    thread = threading.Thread(target=wait)
    thread.start()
    bell.ring()
    thread.join(PATIENCE_S)
    assert heard.is_set()


def test_ring_before_the_wait_is_not_lost_and_many_count_as_one() -> None:
    bell = WakeUp()
    bell.ring()
    bell.ring()
    assert bell.wait(PATIENCE_S)
    assert not bell.wait(0)


def test_wait_without_a_ring_ends_in_time() -> None:
    assert not WakeUp().wait(0.001)


def test_hearing_without_a_ring_does_nothing() -> None:
    bell = WakeUp()
    bell.hear()
    bell.ring()
    bell.hear()
    assert not bell.wait(0)


async def test_ring_makes_the_bell_readable_for_an_event_loop() -> None:
    bell, loop = WakeUp(), asyncio.get_running_loop()
    rung = asyncio.Event()
    loop.add_reader(bell.fileno(), rung.set)
    try:
        await asyncio.to_thread(bell.ring)
        await asyncio.wait_for(rung.wait(), PATIENCE_S)
    finally:
        loop.remove_reader(bell.fileno())


def test_bell_that_is_forgotten_leaves_no_open_file() -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    for _ in range(10):
        WakeUp().ring()
    assert open_files() == before


def test_ring_that_nobody_hears_for_long_does_not_block() -> None:
    bell = WakeUp()
    for _ in range(20_000):  # more than a pipe takes
        bell.ring()
    assert bell.wait(0)
