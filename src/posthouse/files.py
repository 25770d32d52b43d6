"""Private files and directories, atomic writes, and the home directory of posthouse.

Invariants: `read_private` returns data only from a regular file that this user owns and that group and others cannot
reach; type, owner and mode are checked on the open descriptor, so a rename in between cannot cheat. `write_atomic`
and `create_atomic` leave the old content or the new one, never a part, also after power loss (`sync=False`: after a
crash of the process only). A directory that holds files and is open to others is refused, never narrowed. Symbolic
links are refused. Hard links, access control lists and locking between writers are not handled here.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


def write_atomic(path: str | os.PathLike[str], data: bytes, *, sync: bool = True, mode: int = FILE_MODE) -> None:
    """Put `data` at `path`, replacing what is there; a symbolic link there is refused."""
    target = Path(path)
    if target.is_symlink():
        raise error("store_path_unsafe", path=str(target), reason="it is a symbolic link")
    with _temporary(target, data, sync=sync, mode=mode) as temporary:
        temporary.rename(target)
    if sync:
        fsync_dir(target.parent)


def create_atomic(path: str | os.PathLike[str], data: bytes, *, sync: bool = True, mode: int = FILE_MODE) -> None:
    """Put `data` at `path` unless something is there, a dangling link included: then FileExistsError."""
    target = Path(path)
    with _temporary(target, data, sync=sync, mode=mode) as temporary:
        # link() refuses to replace, which rename() cannot promise: of two creators exactly one wins.
        os.link(temporary, target, follow_symlinks=False)
    if sync:
        fsync_dir(target.parent)


@contextmanager
def _temporary(target: Path, data: bytes, *, sync: bool, mode: int) -> Iterator[Path]:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    fd = open_nofollow(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(fd)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


HOME_ENV = "POSTHOUSE_HOME"


def home_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home that the environment names, or the default one."""
    given = environ.get(HOME_ENV)
    return Path(given).expanduser().absolute() if given else Path.home() / ".posthouse"
