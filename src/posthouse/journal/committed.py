"""What a lake has committed of a store's history: one small file per epoch in the lake's directory.

The pipeline writes it after its commit, never before, so that it can only lag behind; bus and daemon read it before
they prune. A lake that says nothing has nothing, and neither has one whose file cannot be understood.
If you change the file: 1. keep old files readable, 2. docs/explain/storage.md.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from posthouse.files import private_dir, write_atomic

DIRECTORY = "committed"


class Committed(msgspec.Struct, frozen=True):
    """The last seq of an epoch that every feed of the lake has."""

    epoch: str
    seq: int


def note_committed(lake: Path, epoch: str, seq: int) -> None:
    """Say that the lake has the records of an epoch up to `seq`; it never goes back."""
    if seq <= read_committed(lake, epoch):
        return
    directory = private_dir(lake / DIRECTORY)
    write_atomic(directory / f"{epoch}.json", msgspec.json.encode(Committed(epoch, seq)))


def read_committed(lake: Path, epoch: str) -> int:
    """Return the last seq of an epoch that the lake has, 0 when it says nothing of it."""
    try:
        data = (lake / DIRECTORY / f"{epoch}.json").read_bytes()
        found = msgspec.json.decode(data, type=Committed)
    except (OSError, msgspec.DecodeError):
        return 0
    return found.seq if found.epoch == epoch else 0
