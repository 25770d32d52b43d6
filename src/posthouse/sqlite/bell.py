"""Waking another thread without handing it a taken interpreter lock.

A lock or a queue of the interpreter, and an event loop's own way in, wake their waiter while the waker still holds
the interpreter lock: the waiter comes awake only to wait again. The kernel's event counter (a pipe where there is none)
is written with that lock given away, so whoever is woken runs at once. Rings that nobody has heard yet count as one.
"""

from __future__ import annotations

import os
import select
import sys
import weakref

_RING = (1).to_bytes(8, sys.byteorder)  # what an event counter is written with; a pipe takes anything
_MANY = 4_096  # bytes of a pipe; what is left rings once more, which harms nobody


class Bell:
    """Rung by any thread, heard by one."""

    def __init__(self) -> None:
        self._fd, self._rope = _event_counter() if hasattr(os, "eventfd") else _pipe()
        for fd in {self._fd, self._rope}:
            weakref.finalize(self, os.close, fd)
        self._rung = select.poll()
        self._rung.register(self._fd, select.POLLIN)

    def fileno(self) -> int:
        """Return what an event loop watches: readable from a ring until it is heard."""
        return self._fd

    def ring(self) -> None:
        """Wake who waits, or the next who does."""
        try:
            os.write(self._rope, _RING)
        except BlockingIOError:  # as many rings wait as the kernel holds
            return

    def hear(self) -> None:
        """Take note of the rings so far, without waiting."""
        try:
            os.read(self._fd, _MANY)
        except BlockingIOError:  # there was none
            return

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring and return whether there was one."""
        if not self._rung.poll(timeout_s * 1000):
            return False
        self.hear()
        return True


def _event_counter() -> tuple[int, int]:
    fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    return fd, fd


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    return ends
