"""Private directories: 0700, owned by this user, never reached through a symbolic link.

Invariant: when `private_dir` returns, nobody but the owner (and root) can list, enter or plant files in the
directory, whatever the umask was. A directory that already holds something and is open to others is
refused, not narrowed: the path may be a mistake, and narrowing a shared directory would break what uses it.
Parents that exist are left alone.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from posthouse.files.private import OPEN_TO_OTHERS, check_owner, open_nofollow
from posthouse.model.errors import error

DIRECTORY_MODE = 0o700


def private_dir(path: str | os.PathLike[str]) -> Path:
    """Make `path` a private directory, with its missing parents, or check that it is one."""
    directory = Path(path)
    if directory.is_symlink():
        raise error("store_path_unsafe", path=str(directory), reason="it is a symbolic link")
    for missing in reversed([parent for parent in directory.parents if not parent.exists()]):
        _make(missing)
    _make(directory)
    fd = open_nofollow(directory, os.O_RDONLY)
    try:
        _narrow(fd, directory)
    finally:
        os.close(fd)
    return directory


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable: a rename or a new file survives power loss only after this."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make(directory: Path) -> None:
    try:
        directory.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:  # another process was faster, or it was there before: the checks decide
        return
    directory.chmod(DIRECTORY_MODE)  # a umask can take bits away from the owner too
    fsync_dir(directory.parent)


def _narrow(fd: int, directory: Path) -> None:
    found = os.fstat(fd)
    if not stat.S_ISDIR(found.st_mode):
        raise error("store_path_unsafe", path=str(directory), reason="it is not a directory")
    check_owner(found, directory)
    if not found.st_mode & OPEN_TO_OTHERS:
        return
    if os.listdir(fd):
        raise error(
            "file_not_private",
            path=str(directory),
            mode=f"{stat.S_IMODE(found.st_mode):04o}",
            hint=f"If posthouse should use this directory, run `chmod 700 {directory}` first.",
        )
    os.fchmod(fd, DIRECTORY_MODE)
