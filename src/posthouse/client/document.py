"""A small private JSON file that several processes read and change: the pins, the meshes joined.

Readers see the old or the new content, never a part. Changes are made one at a time under a lock file, on what
is there then, so that two processes that learn something at once both keep it. The lock file stays: a lock on
a deleted file excludes nobody.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from posthouse.files import open_nofollow, private_dir, read_private, write_atomic
from posthouse.model.errors import error

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")


class Document(Generic[T]):
    """One file with a value of one type; absent, it is the empty value."""

    def __init__(self, path: Path, type: type[T]) -> None:  # noqa: A002 - the type of the value
        self.path = path
        self._type = type
        self._decoder = msgspec.json.Decoder(type)

    def read(self) -> T:
        """Return what the file holds now."""
        try:
            data = read_private(self.path)
        except FileNotFoundError:
            return self._type()
        try:
            return self._decoder.decode(data)
        except ValueError as fault:
            raise error("pins_malformed", path=str(self.path), reason=str(fault)) from fault

    def change(self, edit: Callable[[T], R]) -> R:
        """Let `edit` change the present value, write it, and return what `edit` returned."""
        private_dir(self.path.parent)
        with self._lock():
            value = self.read()
            before = msgspec.json.encode(value)
            result = edit(value)
            after = msgspec.json.encode(value)
            if after != before:
                write_atomic(self.path, msgspec.json.format(after, indent=2) + b"\n")
        return result

    @contextmanager
    def _lock(self) -> Iterator[None]:
        fd = open_nofollow(self.path.with_name(self.path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.fchmod(fd, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)  # held for one small write; the kernel frees it at death
            yield
        finally:
            os.close(fd)
