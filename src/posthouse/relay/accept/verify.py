"""Verify events: size, structure, id and signature, on worker threads.

Verifying is pure apart from the time it takes; the signature, the costly part, releases the interpreter lock.
Workers take slices and return them in any order; submitters restore the order. A small event that is alone on the
whole path is verified on the loop, one per iteration and only while all workers are idle, so no flood is ever
verified there.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import structlog

from posthouse.keys.signature import verify
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event, check_publishable, check_structure, decode_event, read_event
from posthouse.model.limits import KIB
from posthouse.relay.accept.submission import Job
from posthouse.relay.store.event_rows import event_row

log = structlog.get_logger(__name__)


def verify_job(job: Job) -> None:
    """Leave the row of the event in its job, or the refusal."""
    try:
        event, text = read_event(job.raw)
        job.event_id = event.id
        check_publishable(event)
        canonical = check_structure(event)
        verify(event.pubkey, canonical, event.sig)
        job.row = event_row(event, canonical, text)
    except PosthouseError as refusal:
        job.refusal = refusal
    except Exception as defect:
        log.exception("check_failed")
        job.refusal = error("internal", reason=type(defect).__name__)  # a job that stays away would stop its lane


def verify_proof(raw: bytes) -> Event:
    """Return an event that is not published, with structure, id and signature checked."""
    event = decode_event(raw)
    verify(event.pubkey, check_structure(event), event.sig)
    return event


pool_log = get_log(__name__)
SLICE = 16  # about a millisecond of signatures: long enough to pay, short enough to share
REPORT = 2 * SLICE  # a thread that goes on tells so many at once: the loop would take the interpreter lock from it
LONE_BYTES = 4 * KIB  # of JSON: checked in about a tenth of a millisecond, most of it the signature
_PROCESSORS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []  # as the process began


class VerifierPool:
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
        verify_job(job)
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
                    verify_job(job)
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
        pool_log.debug("checker_not_bound", reason=str(refusal))
