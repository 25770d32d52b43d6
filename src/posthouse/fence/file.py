"""A fence's memory in a file, for any number of processes and threads.

The token is written whole or not at all and synced before anybody relies on it; a lock file beside it, held by the
kernel for its holder, keeps others out and falls with its holder, kill -9 included. A file that holds no token is
refused, never taken for a new one: forgetting would open the fence. Format: `posthouse-fence-v1 TOKEN`, a
newline. If you change it: 1. a new version name, 2. read both, 3. docs/how-to/locks.md.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posthouse.files import open_nofollow, write_atomic
from posthouse.model.errors import error

_CONTENT = re.compile(rb"posthouse-fence-v1 ([1-9][0-9]{0,18})\n")
_MAX_BYTES = 64


class FenceFile:
    """Remembers a token in a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._lock_path = self._path.with_name(f"{self._path.name}.lock")

    @property
    def name(self) -> str:
        return str(self._path)

    @contextmanager
    def open(self) -> Iterator[_FileSlot]:
        """Wait until nobody else is at the fence, and stay alone there."""
        fd = open_nofollow(self._lock_path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield _FileSlot(self._path)
        finally:
            os.close(fd)


class _FileSlot:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int | None:
        try:
            fd = open_nofollow(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            found = _CONTENT.fullmatch(file.read(_MAX_BYTES))
        if found is None:
            raise error("fence_damaged", path=str(self._path))
        return int(found[1])

    def write(self, token: int) -> None:
        write_atomic(self._path, b"posthouse-fence-v1 %d\n" % token)
