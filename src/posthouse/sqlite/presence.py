"""Who has a store open: a lock file beside the database.

Every process that opens a store holds the lock shared until it ends; the kernel frees it at death. Restore takes
it exclusively, and so refuses while anybody runs. The lock file is never deleted: a lock on a deleted file
excludes nobody.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from posthouse.model.errors import error


class Presence:
    """A held lock on a store, shared by users or exclusive for whoever replaces the file."""

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        lock = path.with_name(path.name + ".lock")
        try:
            self._fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise error("store_path_unsafe", path=str(lock), reason=exc.strerror or str(exc)) from exc
        os.fchmod(self._fd, 0o600)
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            os.close(self._fd)
            raise error("store_in_use", path=str(path)) from exc

    def close(self) -> None:
        """Let go of the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
