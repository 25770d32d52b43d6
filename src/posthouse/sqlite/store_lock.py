"""The files next to a store that say whether it may be opened: its lock file, and the marker of an unfinished restore.

Each process that opens a store holds the lock shared until it ends (the kernel frees it at death); restore takes it
exclusively and so refuses to run while the store is open anywhere. The lock file is never deleted: a lock on a
deleted file excludes nothing. The marker exists for as long as a restore swaps files: a store with a marker is neither
the old nor the new one, and must not be opened. Loads no SQLite: Spark workers use it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posthouse.files import fsync_dir, open_locked, open_nofollow
from posthouse.model.errors import error


class StoreLock:
    """A held lock on a store: shared by its users, exclusive for a restore that replaces the file."""

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        self._fd = _lock(path, exclusive=exclusive, create=True)

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def lock_path(path: Path) -> Path:
    """Return the name of a store's lock file."""
    return path.with_name(path.name + ".lock")


@contextmanager
def shared_store_lock(path: Path) -> Iterator[None]:
    """Keep a store from being replaced while it is read; a file that was never open as a store has no lock."""
    try:
        fd = _lock(path, exclusive=False, create=False)
    except FileNotFoundError:
        yield
        return
    try:
        yield
    finally:
        os.close(fd)


def _lock(path: Path, *, exclusive: bool, create: bool) -> int:
    lock = lock_path(path)
    try:
        return open_locked(lock, exclusive=exclusive, wait=False, create=create)
    except BlockingIOError as exc:
        shown = path if path.exists() else path.parent  # the lock of a directory has no file of its name
        raise error("store_in_use", path=str(shown)) from exc
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and not create:
            raise
        raise error("store_path_unsafe", path=str(lock), reason=exc.strerror or str(exc)) from exc


def marker_path(path: Path) -> Path:
    """Return the name of a store's marker."""
    return path.with_name(path.name + ".restoring")


def set_marker(path: Path) -> None:
    """Record durably that the store is being replaced."""
    os.close(open_nofollow(marker_path(path), os.O_WRONLY | os.O_CREAT))
    fsync_dir(path.parent)


def clear_marker(path: Path) -> None:
    """Record durably that the store is complete."""
    marker_path(path).unlink()
    fsync_dir(path.parent)


def refuse_half_restored(path: Path) -> None:
    """Raise store_half_restored if a restore of the store was interrupted."""
    if marker_path(path).exists():
        raise error("store_half_restored", path=str(path))
