"""The floor: the bare file steps of one message, without any bus.

Create and write, rename, rename, unlink: what a Maildir cannot do without. Run between the rounds of a measurement
with files of the size the bus writes, in the directories of a mailbox of the measured bus (failed/ in the place of
new/, which the bus watches): ext4 takes the inodes of a directory's files from one region of the disk, and only in the
same region both see the same disk. An ext4 without a journal also looks past every inode that was deleted a moment
ago, so that creating gets slower the more files were alive at once; `rate` can keep some alive, to show how much of a
ratio is that.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from time import perf_counter

from posthouse.bus.directory import endpoint_hash

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Floor:
    """The steps between the directories of one mailbox."""

    def __init__(self, root: Path, subject: str, file_bytes: int) -> None:
        folder = root / "mailboxes" / endpoint_hash(subject)
        self.data = b"x" * file_bytes
        self._tmp, self._new, self._cur = (f"{folder / name}/" for name in ("tmp", "failed", "cur"))
        self._written = 0

    def rate(self, count: int, alive: int = 0) -> float:
        """Run the steps `count` times with `alive` messages waiting; return how many messages a second that is."""
        waiting: deque[str] = deque()
        start = perf_counter()
        for number in range(self._written, self._written + count):
            waiting.append(self._publish(f"floor-{number:020d}"))
            if len(waiting) > alive:
                self._take(waiting.popleft())
        while waiting:
            self._take(waiting.popleft())
        self._written += count
        return count / (perf_counter() - start)

    def _publish(self, name: str) -> str:
        fd = os.open(self._tmp + name, _CREATE, 0o600)
        os.write(fd, self.data)
        os.close(fd)
        os.rename(self._tmp + name, self._new + name)  # noqa: PTH104 - the bare steps
        return name

    def _take(self, name: str) -> None:
        os.rename(self._new + name, self._cur + name)  # noqa: PTH104 - the bare steps
        os.unlink(self._cur + name)  # noqa: PTH108 - the bare steps
