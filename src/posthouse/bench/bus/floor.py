"""The floor: the bare file steps of one message, without any bus.

Create and write, rename, rename, unlink: what a Maildir cannot do without. Run between the rounds of a measurement,
in the same file system, with files of the size the bus writes, so that both see the same machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Floor:
    """Three directories and the steps between them."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self.data = b"x" * file_bytes
        self.boxes = [folder / name for name in ("tmp", "new", "cur")]
        for box in self.boxes:
            box.mkdir(parents=True, exist_ok=True)
        self._written = 0

    def rate(self, count: int) -> float:
        """Run the steps `count` times and return how many messages a second that is."""
        tmp, new, cur = (f"{box}/" for box in self.boxes)
        start = perf_counter()
        for number in range(self._written, self._written + count):
            name = f"{number:026d}"
            fd = os.open(tmp + name, _CREATE, 0o600)
            os.write(fd, self.data)
            os.close(fd)
            os.rename(tmp + name, new + name)  # noqa: PTH104 - the bare steps
            os.rename(new + name, cur + name)  # noqa: PTH104
            os.unlink(cur + name)  # noqa: PTH108
        self._written += count
        return count / (perf_counter() - start)
