"""Who has a store open: a lock file beside the database.

Every process that opens a store holds the lock shared until it ends; the kernel frees it at death. Restore takes
it exclusively, and so refuses while anybody runs. The lock file is never deleted: a lock on a deleted file
excludes nobody.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posthouse.model.errors import error


class Presence:
    """A held lock on a store, shared by users or exclusive for whoever replaces the file."""

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        lock = lock_path(path)
        try:
            self._fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise error("store_path_unsafe", path=str(lock), reason=exc.strerror or str(exc)) from exc
        try:
            os.fchmod(self._fd, 0o600)
            _lock(self._fd, path, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        except BaseException:
            os.close(self._fd)
            raise

    def close(self) -> None:
        """Let go of the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_path(path: Path) -> Path:
    """Return the name of a store's lock file."""
    return path.with_name(path.name + ".lock")


@contextmanager
def looking(path: Path) -> Iterator[None]:
    """Keep a store from being replaced while it is read; a file that never was open as a store has no lock."""
    try:
        fd = os.open(lock_path(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    except OSError as exc:
        raise error("store_path_unsafe", path=str(lock_path(path)), reason=exc.strerror or str(exc)) from exc
    try:
        _lock(fd, path, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, path: Path, kind: int) -> None:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise error("store_in_use", path=str(path)) from exc
