"""Private files and directories, lock files, atomic writes, and the home directory of posthouse.

Invariants: `read_private` returns data only from a regular file that this user owns and that group and others cannot
access; type, owner and mode are checked on the open descriptor, so a rename in between changes nothing.
`write_atomic` and `create_atomic` leave the old content or the new content, never a part of it, even after power loss
(with `sync=False` only after a crash of the process); both raise store_full on a full disk. A non-empty directory that
others can access is refused; its mode is never changed. Symbolic links are refused. Hard links and access control lists
are not handled.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from posthouse.model.errors import PosthouseError, error

FILE_MODE = 0o600
OPEN_TO_OTHERS = 0o077
#: Errno values of a write for which there is no room.
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_UNUSABLE_HINTS = {
    errno.EMFILE: "Let the process open more files: `ulimit -n 1024`. `posthouse doctor` shows the limit.",
    errno.ENFILE: "The machine has too many open files: close programs, or raise fs.file-max as root.",
    errno.EROFS: "The file system is read-only: give a directory on another one.",
}


def unusable(path: str | os.PathLike[str], failure: OSError) -> PosthouseError:
    """Return the error for a file or directory that the operating system refuses, with a hint for its reason."""
    if failure.errno in NO_SPACE:
        return error("store_full", path=os.fspath(path), reason=failure.strerror)
    where = failure.filename if isinstance(failure.filename, str) else os.fspath(path)
    hint = _UNUSABLE_HINTS.get(failure.errno or 0)
    return error("store_unusable", path=where, reason=failure.strerror or str(failure), hint=hint)


def open_nofollow(path: str | os.PathLike[str], flags: int, mode: int = FILE_MODE) -> int:
    """Open `path` as os.open does, but refuse a symbolic link and never block on a FIFO.

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


def open_locked(path: str | os.PathLike[str], *, exclusive: bool = True, wait: bool = True, create: bool = True) -> int:
    """Open a lock file, created with mode 0600, and lock it until the descriptor is closed.

    The kernel frees the lock when the process dies. Raise BlockingIOError if the lock is taken and `wait` is False.
    With `create=False` a missing file raises FileNotFoundError.
    """
    fd = open_nofollow(path, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY)
    try:
        if create:
            os.fchmod(fd, FILE_MODE)
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def locked(path: str | os.PathLike[str], *, exclusive: bool = True, wait: bool = True) -> Iterator[None]:
    """Hold the lock file `path` around the body; raise BlockingIOError if it is taken and `wait` is False."""
    fd = open_locked(path, exclusive=exclusive, wait=wait)
    try:
        yield
    finally:
        os.close(fd)


def read_private(path: str | os.PathLike[str], max_bytes: int = 1 << 20) -> bytes:
    """Return the content of a private file; the checks and the read use the same descriptor."""
    fd = open_nofollow(path, os.O_RDONLY)
    try:
        _check_private(fd, Path(path))
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
    finally:
        os.close(fd)
    if len(data) > max_bytes:
        raise error("store_path_unsafe", path=os.fspath(path), reason=f"it is larger than {max_bytes} bytes")
    return data


def check_owner(found: os.stat_result, path: Path) -> None:
    """Refuse a file of another user: its owner could change it at any time."""
    if found.st_uid != os.geteuid():
        raise error("store_path_unsafe", path=str(path), reason=f"it belongs to the user with id {found.st_uid}")


def _check_private(fd: int, path: Path) -> None:
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


@contextmanager
def _store_full_if_no_space(path: Path) -> Iterator[None]:
    """Raise store_full, a transient error, if the disk is full; let other errors of the system through."""
    try:
        yield
    except OSError as failure:
        if failure.errno not in NO_SPACE:
            raise
        raise unusable(path, failure) from failure


DIRECTORY_MODE = 0o700


def private_dir(path: str | os.PathLike[str]) -> Path:
    """Create `path` and its missing parents as private directories, or check that `path` is one."""
    directory = Path(path)
    if directory.is_symlink():
        raise error("store_path_unsafe", path=str(directory), reason="it is a symbolic link")
    try:
        for missing in reversed([parent for parent in directory.parents if not parent.exists()]):
            _make_directory(missing)
        _make_directory(directory)
    except OSError as failure:
        raise unusable(directory, failure) from failure
    fd = open_nofollow(directory, os.O_RDONLY)
    try:
        _restrict_mode(fd, directory)
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


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make the content of a file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=DIRECTORY_MODE)
    except FileExistsError:  # it existed, or another process was faster: the checks below decide
        return
    directory.chmod(DIRECTORY_MODE)  # the umask may have removed bits of the owner
    fsync_dir(directory.parent)


def _restrict_mode(fd: int, directory: Path) -> None:
    """Make an empty directory private; refuse one that holds files others can access."""
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
            hint=f"Choose a new directory, which posthouse makes private, or run `chmod 700 {directory}`.",
        )
    os.fchmod(fd, DIRECTORY_MODE)


def write_atomic(path: str | os.PathLike[str], data: bytes, *, sync: bool = True, mode: int = FILE_MODE) -> None:
    """Write `data` to `path`, replacing the file that is there; refuse a symbolic link."""
    target = Path(path)
    if target.is_symlink():
        raise error("store_path_unsafe", path=str(target), reason="it is a symbolic link")
    with _temporary(target, data, sync=sync, mode=mode) as temporary:
        temporary.rename(target)
    if sync:
        fsync_dir(target.parent)


def create_atomic(path: str | os.PathLike[str], data: bytes, *, sync: bool = True, mode: int = FILE_MODE) -> None:
    """Write `data` to the new file `path`; raise FileExistsError if anything is there, even a dangling link."""
    target = Path(path)
    with _temporary(target, data, sync=sync, mode=mode) as temporary:
        # Unlike rename(), link() never replaces a file: of two creators exactly one wins.
        os.link(temporary, target, follow_symlinks=False)
    if sync:
        fsync_dir(target.parent)


@contextmanager
def _temporary(target: Path, data: bytes, *, sync: bool, mode: int) -> Iterator[Path]:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    with _store_full_if_no_space(target):
        fd = open_nofollow(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with _store_full_if_no_space(target), os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(fd)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


HOME_ENV = "POSTHOUSE_HOME"


def home_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home directory that the environment names, or the default one."""
    given = environ.get(HOME_ENV)
    return Path(given).expanduser().absolute() if given else Path.home() / ".posthouse"
