"""The threads that check events: as many as there are cores, several events per hand-over.

Handing one event over costs about as much as checking it without its signature, so what has gathered since the last
look goes in slices. Slices come back in any order; the lanes put them in order again.

A small event that comes alone is checked on the loop: nobody waits behind it, and two changes of thread would take
longer than the check. That holds for one event per turn of the loop and only while the threads have nothing to
do, so that no flood is ever verified there.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from posthouse.model.limits import KIB
from posthouse.relay.accept.check import check_job
from posthouse.relay.accept.job import Job

SLICE = 16  # about a millisecond of signatures: long enough to pay, short enough to share
LONE_BYTES = 4 * KIB  # of JSON: checked in about a tenth of a millisecond, most of it the signature


class Checkers:
    """Checks jobs off the event loop and hands them back on it."""

    def __init__(self, threads: int, on_checked: Callable[[Sequence[Job]], None]) -> None:
        self._on_checked = on_checked
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Job] = deque()
        self._slices: SimpleQueue[list[Job] | None] = SimpleQueue()
        self._idle = threads
        self._has_checked_alone = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"checker {number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def check_alone(self, job: Job) -> bool:
        """Check a job here and now if it is small, all threads are idle and none was checked so in this turn.

        Return whether it was checked; `on_checked` is then not called for it.
        """
        if self._has_checked_alone or self._idle < len(self._threads) or len(job.raw) > LONE_BYTES:
            return False
        self._has_checked_alone = True
        self._loop.call_soon(self._end_turn)
        check_job(job)
        return True

    def add(self, jobs: Sequence[Job]) -> None:
        """Queue jobs: an idle thread takes them at once, what comes while all are busy gathers."""
        self._waiting.extend(jobs)
        self._look()

    @property
    def waiting(self) -> int:
        """How many jobs no thread has taken yet."""
        return len(self._waiting)

    def close(self) -> None:
        """Let the threads finish what they have and end."""
        for _ in self._threads:
            self._slices.put(None)
        for thread in self._threads:
            thread.join()

    def _end_turn(self) -> None:
        self._has_checked_alone = False

    def _look(self) -> None:
        while self._idle and self._waiting:
            count = min(SLICE, -(-len(self._waiting) // self._idle))
            self._idle -= 1
            self._slices.put([self._waiting.popleft() for _ in range(count)])

    def _serve(self) -> None:
        while (jobs := self._slices.get()) is not None:
            for job in jobs:
                check_job(job)
            self._loop.call_soon_threadsafe(self._back, jobs)

    def _back(self, jobs: list[Job]) -> None:
        self._idle += 1
        self._look()
        self._on_checked(jobs)
