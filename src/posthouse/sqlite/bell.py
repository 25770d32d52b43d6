"""Waking another thread without handing it a taken interpreter lock.

A lock or a queue of the interpreter, and an event loop's own way in, wake their waiter while the waker still holds
the interpreter lock: the waiter comes awake only to wait again. The kernel's event counter is written with that lock
given away, so whoever is woken runs at once. Rings that nobody has heard yet count as one.
"""

from __future__ import annotations

import os
import select
import weakref


class Bell:
    """Rung by any thread, heard by one."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._fd)
        self._rung = select.poll()
        self._rung.register(self._fd, select.POLLIN)

    def fileno(self) -> int:
        """Return what an event loop watches: readable from a ring until it is heard."""
        return self._fd

    def ring(self) -> None:
        """Wake who waits, or the next who does."""
        os.eventfd_write(self._fd, 1)

    def hear(self) -> None:
        """Take note of the rings so far, without waiting."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:  # there was none
            return

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring and return whether there was one."""
        if not self._rung.poll(timeout_s * 1000):
            return False
        self.hear()
        return True
