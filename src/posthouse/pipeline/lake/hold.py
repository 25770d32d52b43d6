"""Holding the lake: one run at a time, by a lock file that the kernel frees when its holder dies.

Readers need no lock: a commit is one atomic step. The file is never deleted: a lock on a deleted file excludes nobody.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posthouse.files import open_nofollow, private_dir
from posthouse.model.errors import error

LOCK_NAME = "lake.lock"


@contextmanager
def holding(lake: Path) -> Iterator[None]:
    """Keep every other run away from the lake; lake_busy while another one works."""
    private_dir(lake)
    fd = open_nofollow(lake / LOCK_NAME, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise error("lake_busy", path=str(lake)) from None
        yield
    finally:
        os.close(fd)
