"""serve.lock: who holds it serves the mailbox; the kernel hands it on when the holder dies.

The file is never deleted while the endpoint exists: a lock on a deleted file excludes nobody.
"""

from __future__ import annotations

import fcntl
import os

from posthouse.bus.mailbox import Mailbox

LOCK_NAME = "serve.lock"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class ServeLock:
    """The lock of one mailbox, held or not."""

    __slots__ = ("_fd",)

    def __init__(self, mailbox: Mailbox) -> None:
        self._fd = os.open(LOCK_NAME, _FLAGS, 0o600, dir_fd=mailbox.fd)
        os.fchmod(self._fd, 0o600)

    def take(self) -> bool:
        """Take the lock if it is free; return whether this object holds it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Let go; harmless when called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
