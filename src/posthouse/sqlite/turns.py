"""Keeping an event loop and the writer on one processor while they take turns.

A thread that is woken on a sleeping processor starts 20 to 40 us late; on the processor of whoever woke it, it starts
at once. The scheduler prefers the sleeping one, because it cannot know that the waker is about to wait for the answer.
The writer knows: while items come one by one and the whole process needs less than one processor, the two lose nothing
by sharing it. They are let go as soon as two items meet, when nobody asks for a moment, when sharing makes them slower,
and in any case soon, so that the scheduler chooses anew. Threads that the loop starts meanwhile are bound with it and
let go with it; those that were bound to this processor before stay so. Where processors cannot be chosen, nothing of
this happens.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from posthouse.log import get_log

log = get_log(__name__)

DIALOGUE = 16  # items that come alone, one after the other, before the two threads are bound
SILENCE_S = 0.01  # without an item ends the dialogue
STRETCH_NS = 250_000_000  # after which they are let go and judged anew
ROOM = 0.9  # of one processor: what all threads of the process may need together
SLOWER = 2  # times as long as unbound: somebody else needs this processor
_THREADS = Path("/proc/self/task")
_CAN_BIND = hasattr(os, "sched_setaffinity")


class Partner:
    """A thread that may take turns with another; made by that thread."""

    def __init__(self) -> None:
        #: whether it shares a processor with the writer now; the writer says so
        self.takes_turns = False
        self.tid = threading.get_native_id()


class Turns:
    """What the writer's thread knows of its dialogue with one loop; made and used by that thread alone."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._tid = threading.get_native_id()
        self._allowed = os.sched_getaffinity(0) if _CAN_BIND else set()
        self._partner: Partner | None = None
        self._processor: int | None = None
        #: threads that were bound to this processor before
        self._settled: set[int] = set()
        self._items = 0
        #: when the present sixteen items began, what the process had used then, and how long the unbound sixteen took
        self._began_ns = self._used_ns = self._unbound_ns = 0
        self._until_ns = 0

    @property
    def is_dialogue(self) -> bool:
        """Whether items come one by one from one loop."""
        return self._partner is not None

    def note(self, partner: Partner | None) -> None:
        """Take note of a batch that was answered: who asked for its only item, None for any other batch."""
        if partner is None or partner is not self._partner:
            self.end()
            if partner is not None and len(self._allowed) > 1:
                self._begin(partner)
            return
        self._items += 1
        if self._items == DIALOGUE:
            self._judge(partner)

    def end(self) -> None:
        """Let both threads go and forget the dialogue."""
        if self._partner is not None:
            self._partner.takes_turns = False
            self._partner = None
        if self._processor is not None:
            for tid in _bound_to(self._processor) - self._settled:
                _let_go(tid, self._allowed)
            self._processor = None

    def _begin(self, partner: Partner) -> None:
        self._partner, self._items = partner, 0
        self._began_ns, self._used_ns = self._now_ns(), time.process_time_ns()

    def _judge(self, partner: Partner) -> None:
        """Bind the two threads, or look whether that is still right."""
        now_ns = self._now_ns()
        took_ns = now_ns - self._began_ns
        self._items, self._began_ns = 0, now_ns
        if self._processor is not None:
            if now_ns > self._until_ns or took_ns > SLOWER * self._unbound_ns:
                self.end()
            return
        if time.process_time_ns() - self._used_ns > ROOM * took_ns:
            self.end()
            return
        try:
            self._bind(partner)
            self._unbound_ns, self._until_ns = took_ns, now_ns + STRETCH_NS
        except OSError as refusal:  # the loop's thread has ended, or processors may not be chosen here
            log.debug("threads_not_bound", reason=str(refusal))
            self.end()

    def _bind(self, partner: Partner) -> None:
        """Bind both to where the writer came back from its sync: close to the disk's interrupts, as a rule."""
        processor = _processor_of(self._tid)
        if not (_THREADS / str(partner.tid)).exists():  # its number may be another program's by now
            raise ProcessLookupError("the thread of the loop has ended")
        self._processor, self._settled = processor, _bound_to(processor)
        os.sched_setaffinity(self._tid, {processor})
        os.sched_setaffinity(partner.tid, {processor})
        partner.takes_turns = True


def _processor_of(tid: int) -> int:
    about = (_THREADS / str(tid) / "stat").read_text("utf-8", "replace")
    return int(about.rpartition(")")[2].split()[36])  # what precedes is its number and its name


def _bound_to(processor: int) -> set[int]:
    """Return the threads of this process that may run on `processor` only."""
    bound = set()
    for thread in _THREADS.iterdir():
        tid = int(thread.name)
        try:
            if os.sched_getaffinity(tid) == {processor}:
                bound.add(tid)
        except ProcessLookupError:  # it has ended
            continue
    return bound


def _let_go(tid: int, allowed: set[int]) -> None:
    try:
        os.sched_setaffinity(tid, allowed)
    except ProcessLookupError:  # it has ended
        return
