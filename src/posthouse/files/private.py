"""Private files: opened without following a symbolic link, and refused when others could have read or
planted them.

Invariant: what `read_private` returns came from a regular file that this user owns and that group and
others cannot reach; type, owner and mode are checked on the open descriptor, so no rename in between can
cheat. Hard links and access control lists are not looked at.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from posthouse.model.errors import error

FILE_MODE = 0o600
OPEN_TO_OTHERS = 0o077


def open_nofollow(path: str | os.PathLike[str], flags: int, mode: int = FILE_MODE) -> int:
    """Open `path` as os.open does, but refuse a symbolic link and never block on a planted FIFO.

    A file that O_EXCL creates gets exactly `mode`, whatever the umask.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as failure:
        if failure.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        reason = "it is a symbolic link" if failure.errno == errno.ELOOP else "it is not a regular file"
        raise error("store_path_unsafe", path=os.fspath(path), reason=reason) from failure
    if flags & os.O_EXCL:
        os.fchmod(fd, mode)
    return fd


def check_private(path: str | os.PathLike[str]) -> os.stat_result:
    """Refuse `path` unless it is a regular file that only its owner, this user, can reach."""
    fd = open_nofollow(path, os.O_RDONLY)
    try:
        return _check(fd, Path(path))
    finally:
        os.close(fd)


def read_private(path: str | os.PathLike[str], max_bytes: int = 1 << 20) -> bytes:
    """Return the content of a private file; the checks and the read use the same open file."""
    fd = open_nofollow(path, os.O_RDONLY)
    try:
        _check(fd, Path(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise error("store_path_unsafe", path=os.fspath(path), reason=f"it is larger than {max_bytes} bytes")
    return data


def check_owner(found: os.stat_result, path: Path) -> None:
    """Refuse what belongs to another user: its owner could change it at any time."""
    if found.st_uid != os.geteuid():
        raise error("store_path_unsafe", path=str(path), reason=f"it belongs to the user with id {found.st_uid}")


def _check(fd: int, path: Path) -> os.stat_result:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise error("store_path_unsafe", path=str(path), reason="it is not a regular file")
    check_owner(found, path)
    if found.st_mode & OPEN_TO_OTHERS:
        raise error(
            "file_not_private",
            path=str(path),
            mode=f"{stat.S_IMODE(found.st_mode):04o}",
            hint=f"Run `chmod 600 {path}`; if others may have read it, make a new key instead.",
        )
    return found
