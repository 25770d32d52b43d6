"""The threads that check events: as many as there are cores, each bound to its own, several events per hand-over.

Handing one event over costs about as much as checking it without its signature, so a thread takes what waits in
slices, and goes on until nothing does. Slices come back in any order; the lanes put them in order again.

Each thread has its processor, because the scheduler is slow to part two threads that it once put on the same one: they
are woken together, work for a few milliseconds and sleep again, which left one processor idle most of the time.

A small event that comes alone is checked on the loop: nobody waits behind it, and two changes of thread would take
longer than the check. That holds for one event per turn of the loop and only while the threads have nothing to
do, so that no flood is ever verified there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from posthouse.log import get_log
from posthouse.model.limits import KIB
from posthouse.relay.accept.check import check_job
from posthouse.relay.accept.job import Job

log = get_log(__name__)

SLICE = 16  # about a millisecond of signatures: long enough to pay, short enough to share
REPORT = 2 * SLICE  # a thread that goes on tells so many at once: the loop would take the interpreter lock from it
LONE_BYTES = 4 * KIB  # of JSON: checked in about a tenth of a millisecond, most of it the signature
_PROCESSORS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []  # as the process began


class Checkers:
    """Checks jobs off the event loop and hands them back on it."""

    def __init__(self, threads: int, on_checked: Callable[[Sequence[Job]], None]) -> None:
        self._on_checked = on_checked
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Job] = deque()
        #: True calls a thread to work, False sends it home
        self._calls: SimpleQueue[bool] = SimpleQueue()
        self._idle = threads
        self._has_checked_alone = False
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), name=f"checker {number}", daemon=True)
            for number in range(threads)
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
        """Queue jobs: idle threads take them at once, what comes while all are busy gathers."""
        self._waiting.extend(jobs)
        self._call()

    @property
    def waiting(self) -> int:
        """How many jobs no thread has taken yet."""
        return len(self._waiting)

    def close(self) -> None:
        """Let the threads finish what they have and end."""
        for _ in self._threads:
            self._calls.put(False)
        for thread in self._threads:
            thread.join()

    def _end_turn(self) -> None:
        self._has_checked_alone = False

    def _call(self) -> None:
        """Call as many idle threads as there are jobs for."""
        for _ in range(min(self._idle, len(self._waiting))):
            self._idle -= 1
            self._calls.put(True)

    def _back(self, jobs: Sequence[Job], is_idle: bool) -> None:
        if is_idle:
            self._idle += 1
            self._call()  # for what came after its last look
        if jobs:
            self._on_checked(jobs)

    def _serve(self, number: int) -> None:
        _bind(number)
        while self._calls.get():
            checked: list[Job] = []
            is_idle = False
            jobs = self._take()
            while not is_idle:
                for job in jobs:
                    check_job(job)
                checked += jobs
                jobs = self._take()
                is_idle = not jobs
                if is_idle or len(checked) >= REPORT:
                    self._loop.call_soon_threadsafe(self._back, checked, is_idle)
                    checked = []

    def _take(self) -> list[Job]:
        """Return the next slice, nothing when no job waits; called by the threads."""
        jobs: list[Job] = []
        try:
            for _ in range(min(SLICE, -(-len(self._waiting) // len(self._threads)))):
                jobs.append(self._waiting.popleft())
        except IndexError:  # another thread was faster
            pass
        return jobs


def _bind(number: int) -> None:
    """Bind this thread to a processor of its own, where processors can be chosen."""
    if not _PROCESSORS:
        return
    try:
        os.sched_setaffinity(0, {_PROCESSORS[number % len(_PROCESSORS)]})
    except OSError as refusal:
        log.debug("checker_not_bound", reason=str(refusal))
