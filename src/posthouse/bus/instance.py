"""Who is alive: a lock file in procs/ that each open Bus holds until it closes or dies.

The kernel frees the lock at death, however it comes. A Bus whose lock can be taken is dead: its open reservations
may be swept. The lock counts, not the file: a file without a lock means nothing.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


class Instance:
    """The life sign of this Bus."""

    def __init__(self, procs: Path) -> None:
        self.name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._path = procs / self.name
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.fchmod(self._fd, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # somebody who looks whether we live holds it for a moment only
        #: the number of this instance in bus.db; set once it is entered there
        self.number = 0

    def close(self) -> None:
        """Die in order: the file first, so that nobody finds it unlocked."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def is_alive(procs: Path, name: str) -> bool:
    """Tell whether the Bus of that name is open somewhere."""
    try:
        fd = os.open(procs / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
