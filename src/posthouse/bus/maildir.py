"""The files of one mailbox: messages, spare files and dead letters.

A message is written to tmp/, renamed to new/ and to cur/, then removed; a dead letter goes to failed/. Invariant: a
file in new/, cur/ or failed/ is complete, because it was written under another name and renamed. All paths are
relative to one directory descriptor, so that another directory cannot be swapped in. File names are used as given:
callers pass validated ids, or names from a listing. This module does not interpret messages.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from posthouse.model.envelope import HandlerError
from posthouse.model.errors import PosthouseError, error

FOLDERS = ("tmp", "new", "cur", "failed")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OVERWRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PRIVATE_FILE = stat.S_IFREG | 0o600
_USER = os.geteuid()
MAX_FILE_BYTES = 64 * 1024 * 1024  # far above any envelope; a larger file is not a message


class Mailbox:
    """One open mailbox."""

    __slots__ = ("fd", "path")

    def __init__(self, path: Path, folders: tuple[str, ...] = FOLDERS) -> None:
        self.path = path
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as failure:
            if failure.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise error("store_path_unsafe", path=str(path), reason="it is not a plain directory") from failure
        for folder in folders:
            found = os.stat(folder, dir_fd=self.fd, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                os.close(self.fd)
                raise error("store_path_unsafe", path=str(path / folder), reason="it is not a plain directory")

    def close(self) -> None:
        os.close(self.fd)

    def write(self, name: str, data: bytes, *, sync: bool = False) -> None:
        """Write tmp/<name>; a failure leaves no file behind."""
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
        """Replace the content of tmp/<name>; return False without a change unless it is a private file of this user."""
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
        """Remove a file; return False if it did not exist."""
        try:
            os.unlink(path, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        return True

    def sync(self, folder: str) -> None:
        """Make the names in one folder durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def has(self, path: str) -> bool:
        """Return True if the path exists."""
        return self.size(path) is not None

    def size(self, path: str) -> int | None:
        """Return the size of a file, or None if the path does not exist."""
        try:
            return os.stat(path, dir_fd=self.fd, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes:
        """Return the content of a regular file; raise OSError if it is not one, is gone or is too large.

        The name is checked again after reading: a spare file that lost its name meanwhile may hold another message.
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

    def names(self, folder: str) -> list[str]:
        """Return the names in one folder, oldest first."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            return sorted(os.listdir(fd))  # noqa: PTH208 - a descriptor, so that no path can be swapped
        finally:
            os.close(fd)


def _write_rest(fd: int, data: bytes) -> None:
    """Continue a short write; a full disk raises here."""
    written = os.lseek(fd, 0, os.SEEK_CUR)
    while written < len(data):
        written += os.write(fd, data[written:])


SPARE_MAX_BYTES = 16 * 1024  # size of a file that is kept: nearly every message
SPARE_MAX_FILES = 1_024  # in all mailboxes together: 16 MiB of disk at most


class SpareFiles:
    """Files of ended messages that are overwritten with new messages, by mailbox.

    An ext4 without a journal searches all recently freed inodes before it creates a file, which takes up to half a
    millisecond. Overwriting and renaming a file avoids that.
    """

    def __init__(self, instance: str, find_mailbox: Callable[[str], Mailbox | None], max_files: int) -> None:
        self._suffix = f".{instance}"
        self._find_mailbox = find_mailbox
        self._numbers = count()
        self._free_slots = max_files
        self._names: dict[str, list[str]] = {}
        #: the fewest spares that a mailbox had since the last `remove_unneeded`
        self._low_water: dict[str, int] = {}

    def keep(self, hash_: str, mailbox: Mailbox, path: str) -> bool:
        """Keep the file of an ended message as a spare; return False if the caller has to remove it."""
        if not self._free_slots:
            return False
        name = f"spare-{next(self._numbers)}{self._suffix}"
        try:
            mailbox.move(path, f"tmp/{name}")
        except OSError:
            return False
        self._free_slots -= 1
        names = self._names.get(hash_)
        if names is None:
            names = self._names[hash_] = []
            self._low_water[hash_] = 0
        names.append(name)
        return True

    def write(self, hash_: str, mailbox: Mailbox, data: bytes, target: str) -> bool:
        """Overwrite a spare with `data` and rename it to `target`; return False if there is no usable spare."""
        names = self._names.get(hash_)
        if not names or len(data) > SPARE_MAX_BYTES:
            return False
        name = names.pop()
        self._free_slots += 1
        if len(names) < self._low_water[hash_]:
            self._low_water[hash_] = len(names)
        try:
            if mailbox.overwrite(name, data):
                mailbox.move(f"tmp/{name}", target)
                return True
        except FileNotFoundError:  # the spare or the whole mailbox is gone: creating a file shows which
            pass
        except OSError:
            _discard_spare(mailbox, name)
            raise
        _discard_spare(mailbox, name)
        return False

    def remove_unneeded(self) -> None:
        """Remove the spares that were not used since the last call."""
        for hash_ in list(self._names):
            self._remove(hash_, self._low_water[hash_])

    def close(self) -> None:
        """Remove all spares."""
        for hash_ in list(self._names):
            self._remove(hash_, len(self._names[hash_]))

    def forget(self, hash_: str) -> None:
        """Forget the spares of a mailbox that is being removed."""
        self._free_slots += len(self._names.pop(hash_, ()))

    def _remove(self, hash_: str, count: int) -> None:
        try:
            mailbox = self._find_mailbox(hash_)
        except (OSError, PosthouseError):  # damaged: recovery removes the spares once it is repaired
            mailbox = None
        if mailbox is None:
            self.forget(hash_)
            return
        names = self._names[hash_]
        for name in names[:count]:
            _discard_spare(mailbox, name)
        self._free_slots += count
        self._names[hash_] = names[count:]
        self._low_water[hash_] = len(names) - count


def _discard_spare(mailbox: Mailbox, name: str) -> None:
    try:
        mailbox.remove(f"tmp/{name}")
    except OSError:  # recovery removes it once this process has ended
        return


RAW_MAX_BYTES = 64 * 1024  # how much is kept of an invalid file: enough to see what it was
_encode = msgspec.json.Encoder().encode


def clean_text(text: str) -> str:
    """Replace the characters that JSON and SQLite cannot store."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\\x00")


def encode_dead_letter(
    envelope: bytes | None,
    reason: str,
    failed_at: str,
    raw: bytes | None = None,
    raised: HandlerError | None = None,
    refused: str | None = None,
) -> bytes:
    """Return the content of a dead letter's file; `raw` is the content of a file that held no message."""
    fields: dict[str, Any] = {"envelope": None if envelope is None else msgspec.Raw(envelope)}
    fields |= {"reason": clean_text(reason), "failedAt": failed_at}
    if raw is not None:
        fields["raw"] = raw[:RAW_MAX_BYTES].decode("utf-8", "replace")
    if raised is not None:
        fields["error"] = raised
    if refused is not None:
        fields["refused"] = refused
    return _encode(fields)


def write_dead_letter(mailbox: Mailbox, id_: str, instance: str, data: bytes, *, sync: bool = False) -> None:
    """Write a dead letter to failed/, replacing an older one of the same id."""
    temporary = f"{id_}.{instance}"
    mailbox.write(temporary, data, sync=sync)
    mailbox.move(f"tmp/{temporary}", f"failed/{id_}")
    if sync:
        mailbox.sync("failed")


def remove_invalid(mailbox: Mailbox, path: str, id_: str) -> bytes | None:
    """Return the content of an invalid file, or why it has none; the caller removes it.

    A directory moves to failed/<id>.stray, because it may hold files; links, pipes and the like hold nothing.
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
