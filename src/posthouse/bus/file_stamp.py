"""Noticing that a small settings file changed: one stat instead of a watch, so that no change is ever missed.

A stamp is what stat says of the file. Content is read without following a link, because a planted one could
open a door.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_BYTES = 4 * 1024 * 1024
Stamp = tuple[int, int, int, int]
_ABSENT: Stamp = (0, 0, 0, 0)


def stamp_of(path: Path) -> Stamp:
    """Return what tells one version of a file from the next."""
    try:
        found = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - runs before every transaction
    except FileNotFoundError:
        return _ABSENT
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def read_stamped(path: Path) -> bytes | None:
    """Return the content of a regular file of bearable size, or None when there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES} bytes")
    return data
