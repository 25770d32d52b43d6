"""A configuration file of another program: read and replaced safely.

Below its anchor (home or project) no symbolic link is followed: a project from another author must not redirect the
write. All access goes through open directory descriptors, so no directory can be swapped in between. After a backup is
written next to it, the file is replaced as a whole and keeps its mode; a file that has changed since it was read is
left alone.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from posthouse.model.errors import PosthouseError, error

MAX_BYTES = 1 << 20
_NEW_FILE = 0o600
_NEW_DIRECTORY = 0o700
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class Content:
    """The content of a file when it was read."""

    data: bytes
    mode: int


@dataclass(frozen=True)
class ConfigFile:
    """A file below an anchor."""

    anchor: Path
    parts: tuple[str, ...]

    @property
    def path(self) -> Path:
        return self.anchor.joinpath(*self.parts)

    def read(self) -> Content | None:
        """Return the content, or None if the file does not exist."""
        with self._directory(is_created=False) as directory:
            return None if directory is None else self._read(directory)

    def replace(self, before: Content | None, data: bytes, stamp: str) -> Path | None:
        """Write `data` if the content is still `before`; return the path of the backup, if one was made."""
        with self._directory(is_created=True) as directory:
            assert directory is not None
            if self._read(directory) != before:
                raise error("agent_config_changed", path=str(self.path))
            backup = None if before is None else self._back_up(directory, before, stamp)
            self._put(directory, data, before)
            return backup

    def _back_up(self, directory: int, before: Content, stamp: str) -> Path:
        name = f"{self.parts[-1]}.{stamp}.bak"
        _write_new(directory, name, before.data, before.mode)
        return self.path.with_name(name)

    def _put(self, directory: int, data: bytes, before: Content | None) -> None:
        name, temporary = self.parts[-1], f".{self.parts[-1]}.{secrets.token_hex(8)}.tmp"
        try:
            _write_new(directory, temporary, data, _NEW_FILE if before is None else before.mode)
        except OSError as failure:
            failure.filename = str(self.path)  # the name of the temporary file would mean nothing to the user
            raise
        try:
            if before is None:
                os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            else:
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                temporary = ""
        except FileExistsError as failure:
            raise error("agent_config_changed", path=str(self.path)) from failure
        finally:
            if temporary:
                os.unlink(temporary, dir_fd=directory)
        os.fsync(directory)

    def _read(self, directory: int) -> Content | None:
        name = self.parts[-1]
        try:
            found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(found.st_mode):
            raise self._unsafe("it is a symbolic link")
        if not stat.S_ISREG(found.st_mode):
            raise self._unsafe("it is not a regular file")
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        with os.fdopen(fd, "rb") as file:
            return self._checked(os.fstat(fd), file.read(MAX_BYTES + 1))

    def _checked(self, found: os.stat_result, data: bytes) -> Content:
        if not stat.S_ISREG(found.st_mode):
            raise self._unsafe("it is not a regular file")
        if found.st_uid != os.geteuid():
            raise self._unsafe(f"it belongs to the user with id {found.st_uid}")
        if len(data) > MAX_BYTES:
            raise self._unsafe(f"it is larger than {MAX_BYTES} bytes")
        return Content(data, stat.S_IMODE(found.st_mode))

    @contextmanager
    def _directory(self, *, is_created: bool) -> Iterator[int | None]:
        """Open the directory of the file step by step; None if it does not exist and is not to be created."""
        try:
            current = os.open(self.anchor, _DIRECTORY)
        except OSError as failure:
            raise self._unsafe(f"{self.anchor}: {failure.strerror}") from failure
        try:
            for part in self.parts[:-1]:
                below = self._step(current, part, is_created=is_created)
                if below is None:
                    yield None
                    return
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)

    def _step(self, directory: int, part: str, *, is_created: bool) -> int | None:
        if is_created:
            with suppress(FileExistsError):
                os.mkdir(part, _NEW_DIRECTORY, dir_fd=directory)
        try:
            return os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
        except FileNotFoundError:
            return None
        except OSError as failure:  # ELOOP or ENOTDIR, depending on the system
            raise self._unsafe(f"{part} is a symbolic link or not a directory") from failure

    def _unsafe(self, reason: str) -> PosthouseError:
        return error("agent_config_unsafe", path=str(self.path), reason=reason)


def _write_new(directory: int, name: str, data: bytes, mode: int) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)
        file.write(data)
        file.flush()
        os.fsync(fd)
