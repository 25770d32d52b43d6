"""A mailbox on disk, read without the bus: the files that the specification describes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

Box = Literal["tmp", "new", "cur", "failed"]


def hash_of(subject: str) -> str:
    """The directory name of an endpoint's mailbox."""
    return hashlib.sha256(subject.encode()).hexdigest()[:12]


class Mailbox:
    """The four directories of one endpoint."""

    def __init__(self, root: Path, subject: str) -> None:
        self.path = root / "mailboxes" / hash_of(subject)

    def names(self, box: Box) -> list[str]:
        """File names in one directory, oldest first."""
        return sorted(path.name for path in (self.path / box).iterdir())

    def read(self, box: Box) -> list[Any]:
        """The JSON documents in one directory, oldest first."""
        return [json.loads((self.path / box / name).read_bytes()) for name in self.names(box)]

    @property
    def new(self) -> list[str]:
        return self.names("new")

    @property
    def cur(self) -> list[str]:
        return self.names("cur")

    @property
    def failed(self) -> list[Any]:
        return self.read("failed")

    @property
    def depth(self) -> int:
        """Messages that wait or are being handled."""
        return len(self.new) + len(self.cur)


def unrouted(root: Path) -> list[Any]:
    """The dead letters of messages that found no endpoint."""
    return [json.loads(path.read_bytes()) for path in sorted((root / "unrouted" / "failed").iterdir())]
