"""The Maildir steps of one mailbox: write to tmp/, rename to new/, to cur/, remove; dead letters to failed/.

Invariant: a file in new/, cur/ or failed/ is whole, because it was written under another name and renamed. All
paths are relative to one descriptor of the mailbox, so that nobody can slip another directory under it. Names are
used as given: callers pass ids they have checked, or names they got from a listing.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from posthouse.model.errors import error

BOXES = ("tmp", "new", "cur", "failed")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OVERWRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PRIVATE_FILE = stat.S_IFREG | 0o600
_USER = os.geteuid()
MAX_FILE_BYTES = 64 * 1024 * 1024  # far above any envelope; a larger file is nobody's message


class Mailbox:
    """One open mailbox."""

    __slots__ = ("fd", "path")

    def __init__(self, path: Path, boxes: tuple[str, ...] = BOXES) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as failure:
            if failure.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise error("store_path_unsafe", path=str(path), reason="it is not a plain directory") from failure
        for box in boxes:
            found = os.stat(box, dir_fd=self.fd, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                os.close(self.fd)
                raise error("store_path_unsafe", path=str(path / box), reason="it is not a plain directory")

    def close(self) -> None:
        os.close(self.fd)

    def write(self, name: str, data: bytes, *, sync: bool = False) -> None:
        """Write tmp/<name>; nothing is left behind when it fails."""
        path = "tmp/" + name
        fd = os.open(path, _CREATE, 0o600, dir_fd=self.fd)
        try:
            try:
                os.fchmod(fd, 0o600)
                if os.write(fd, data) != len(data):
                    _write_rest(fd, data)
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)
        except BaseException:
            os.unlink(path, dir_fd=self.fd)
            raise

    def overwrite(self, name: str, data: bytes) -> bool:
        """Replace the content of tmp/<name>; return False, touching nothing, when it is not a private file of ours."""
        try:
            fd = os.open("tmp/" + name, _OVERWRITE, dir_fd=self.fd)
        except OSError as failure:
            if failure.errno == errno.ENOENT:
                raise
            return False
        try:
            found = os.fstat(fd)
            if found.st_mode != _PRIVATE_FILE or found.st_nlink != 1 or found.st_uid != _USER:
                return False
            if os.write(fd, data) != len(data):
                _write_rest(fd, data)
            if found.st_size > len(data):
                os.ftruncate(fd, len(data))
        finally:
            os.close(fd)
        return True

    def move(self, source: str, target: str) -> None:
        """Rename within the mailbox."""
        os.rename(source, target, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, path: str) -> bool:
        """Remove a file; return whether it was there."""
        try:
            os.unlink(path, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        return True

    def sync(self, box: str) -> None:
        """Make the names in one directory durable."""
        fd = os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def has(self, path: str) -> bool:
        """Tell whether something lies there."""
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Return the size of what lies there, None when nothing does."""
        try:
            return os.stat(path, dir_fd=self.fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes:
        """Return the content of a regular file; OSError when it is none, is gone or is too large.

        The name is looked at again after reading: a file whose name has gone meanwhile may hold another message.
        """
        fd = os.open(path, _READ, dir_fd=self.fd)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            if found.st_size > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_BYTES} bytes")
            data = os.read(fd, found.st_size + 1)
            while len(data) < found.st_size and (more := os.read(fd, found.st_size - len(data))):
                data += more
            if os.stat(path, dir_fd=self.fd, follow_symlinks=False).st_ino != found.st_ino:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return data
        finally:
            os.close(fd)

    def names(self, box: str) -> list[str]:
        """Return the names in one directory, oldest first."""
        fd = os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            return sorted(os.listdir(fd))  # noqa: PTH208 - a descriptor, so that no path can be swapped
        finally:
            os.close(fd)


def _write_rest(fd: int, data: bytes) -> None:
    """Write again from where a short write ended; a full disk raises here."""
    written = os.lseek(fd, 0, os.SEEK_CUR)
    while written < len(data):
        written += os.write(fd, data[written:])
