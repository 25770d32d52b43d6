"""The files beside a store that say whether it may be opened: its lock file and the marker of a running restore.

Each process that opens a store holds the lock shared until it ends (the kernel frees it at death); restore takes it
exclusively and so refuses while the store is open anywhere. The lock file is never deleted: a lock on a deleted file
excludes no one. The marker stands from before the first change of a restore's swap until after the last: a store
beside a marker is neither the old nor the new one and must not be opened. Loads no SQLite: Spark workers use it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posthouse.files import fsync_dir, open_nofollow
from posthouse.model.errors import error


class StoreLock:
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
def shared_store_lock(path: Path) -> Iterator[None]:
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


def marker_path(path: Path) -> Path:
    """Return the name of a store's marker."""
    return path.with_name(path.name + ".restoring")


def set_marker(path: Path) -> None:
    """Say, durably, that the store is being replaced."""
    os.close(open_nofollow(marker_path(path), os.O_WRONLY | os.O_CREAT))
    fsync_dir(path.parent)


def clear_marker(path: Path) -> None:
    """Say, durably, that the store is whole."""
    marker_path(path).unlink()
    fsync_dir(path.parent)


def refuse_half_restored(path: Path) -> None:
    """Refuse a store whose restore was interrupted."""
    if marker_path(path).exists():
        raise error("store_half_restored", path=str(path))
