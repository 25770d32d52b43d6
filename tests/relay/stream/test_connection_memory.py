"""What an idle connection holds: flags without a queue of waiters, connections without a dictionary."""

from __future__ import annotations

import asyncio
import sys

from posthouse.relay.stream.connection import Connection
from posthouse.relay.wire.frames import Flag
from posthouse.relay.wire.websocket import WebSocket


async def test_flag_wakes_every_task_that_waits() -> None:
    flag = Flag()
    waiting = [asyncio.create_task(flag.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    flag.set()
    flag.clear()
    await asyncio.gather(*waiting)
    assert not flag.is_set()


async def test_task_that_no_longer_waits_is_forgotten() -> None:
    flag = Flag()
    gone, waiting = asyncio.create_task(flag.wait()), asyncio.create_task(flag.wait())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    counts = [len(flag._waiters)]
    flag.set()
    await waiting
    counts.append(len(flag._waiters))
    assert counts == [1, 0]
    await flag.wait()


def test_idle_flag_is_small() -> None:
    flag = Flag(is_set=True)
    assert sys.getsizeof(flag) + sys.getsizeof(flag._waiters) < 100


def test_connection_has_no_dictionary() -> None:
    """With more than 30 attributes it would take 1.7 KB."""
    assert not any("__dict__" in vars(base) for base in Connection.__mro__)


def test_attributes_of_a_socket_fit_the_small_dictionary() -> None:
    """Dictionaries of instances share their keys as long as there are at most 30."""
    assert len(vars(WebSocket(1_024))) <= 30
