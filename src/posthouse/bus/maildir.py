"""The files of one mailbox: messages, the serve lock, spare files and dead letters.

A message is written to tmp/, renamed to new/ and to cur/, then removed; a dead letter goes to failed/. Invariant: a
file in new/, cur/ or failed/ is complete, because it was written under another name and renamed. All paths are
relative to one directory descriptor, so that another directory cannot be swapped in. File names are used as given:
callers pass validated ids, or names from a listing. What a message or a dead letter means is not decided here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from posthouse.model.errors import PosthouseError, error

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


LOCK_NAME = "serve.lock"
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class ServeLock:
    """The lock of one mailbox, held or not."""

    __slots__ = ("_fd",)

    def __init__(self, mailbox: Mailbox) -> None:
        self._fd = os.open(LOCK_NAME, _LOCK_FLAGS, 0o600, dir_fd=mailbox.fd)
        os.fchmod(self._fd, 0o600)

    def take(self) -> bool:
        """Take the lock if it is free; return whether this object holds it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Let go; harmless when called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


SPARE_MAX_BYTES = 16 * 1024  # of a file that is kept: nearly every message
SPARE_MAX_FILES = 1_024  # of all mailboxes together: 16 MiB of disk at most


class SpareFiles:
    """The spare files of one open Bus, by mailbox."""

    def __init__(self, instance: str, find_mailbox: Callable[[str], Mailbox | None], max_files: int) -> None:
        self._suffix = f".{instance}"
        self._find_mailbox = find_mailbox
        self._numbers = count()
        self._room = max_files
        self._names: dict[str, list[str]] = {}
        #: how few of a mailbox's spares there were since the last `trim`
        self._least: dict[str, int] = {}

    def put(self, hash_: str, mailbox: Mailbox, path: str) -> bool:
        """Put the file of an ended message aside; return False when it was left where it is."""
        if not self._room:
            return False
        name = f"spare-{next(self._numbers)}{self._suffix}"
        try:
            mailbox.move(path, f"tmp/{name}")
        except OSError:
            return False
        self._room -= 1
        names = self._names.get(hash_)
        if names is None:
            names = self._names[hash_] = []
            self._least[hash_] = 0
        names.append(name)
        return True

    def write(self, hash_: str, mailbox: Mailbox, data: bytes, target: str) -> bool:
        """Write `data` over a spare and rename it to `target`; return False when there is none to use."""
        names = self._names.get(hash_)
        if not names or len(data) > SPARE_MAX_BYTES:
            return False
        name = names.pop()
        self._room += 1
        if len(names) < self._least[hash_]:
            self._least[hash_] = len(names)
        try:
            if mailbox.overwrite(name, data):
                mailbox.move(f"tmp/{name}", target)
                return True
        except FileNotFoundError:  # somebody took it away, or the mailbox: creating a file tells which
            pass
        except OSError:
            _discard_spare(mailbox, name)
            raise
        _discard_spare(mailbox, name)
        return False

    def trim(self) -> None:
        """Remove those that were not needed since the last time."""
        for hash_ in list(self._names):
            self._remove(hash_, self._least[hash_])

    def close(self) -> None:
        """Remove all."""
        for hash_ in list(self._names):
            self._remove(hash_, len(self._names[hash_]))

    def forget(self, hash_: str) -> None:
        """The mailbox goes, and its spares with it."""
        self._room += len(self._names.pop(hash_, ()))

    def _remove(self, hash_: str, most: int) -> None:
        try:
            mailbox = self._find_mailbox(hash_)
        except (OSError, PosthouseError):  # damaged: swept once it is repaired and this process has ended
            mailbox = None
        if mailbox is None:
            self.forget(hash_)
            return
        names = self._names[hash_]
        for name in names[:most]:
            _discard_spare(mailbox, name)
        self._room += most
        self._names[hash_] = names[most:]
        self._least[hash_] = len(names) - most


def _discard_spare(mailbox: Mailbox, name: str) -> None:
    try:
        mailbox.remove(f"tmp/{name}")
    except OSError:  # swept once this process has ended
        return


RAW_MAX_BYTES = 64 * 1024  # of a file that is no message: enough to see what it was
_encode = msgspec.json.Encoder().encode


def clean_text(text: str) -> str:
    """Return the text without what JSON and SQLite cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\\x00")


def encode_dead_letter(envelope: bytes | None, reason: str, failed_at: str, raw: bytes | None = None) -> bytes:
    """Return the file of a dead letter."""
    fields: dict[str, Any] = {"envelope": None if envelope is None else msgspec.Raw(envelope)}
    fields |= {"reason": clean_text(reason), "failedAt": failed_at}
    if raw is not None:
        fields["raw"] = raw[:RAW_MAX_BYTES].decode("utf-8", "replace")
    return _encode(fields)


def write_dead_letter(mailbox: Mailbox, id_: str, instance: str, data: bytes, *, sync: bool = False) -> None:
    """Put a dead letter into failed/; one that is there already gives way to the newer reason."""
    temporary = f"{id_}.{instance}"
    mailbox.write(temporary, data, sync=sync)
    mailbox.move(f"tmp/{temporary}", f"failed/{id_}")
    if sync:
        mailbox.sync("failed")


def remove_stray(mailbox: Mailbox, path: str, id_: str) -> bytes | None:
    """Take what is no regular file out of a mailbox; return the content of what is one.

    A directory goes to failed/<id>.stray, because it may hold something; links, pipes and the like hold nothing.
    """
    try:
        return mailbox.read(path)[:RAW_MAX_BYTES]
    except IsADirectoryError:
        mailbox.move(path, f"failed/{id_}.stray")
    except OSError as failure:
        if failure.errno == errno.EISDIR or _is_directory(mailbox, path):
            mailbox.move(path, f"failed/{id_}.stray")
        else:
            return str(failure).encode()
    return None


def _is_directory(mailbox: Mailbox, path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=mailbox.fd)
    except OSError:
        return False
    os.close(fd)
    return True
