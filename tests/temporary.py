"""Where the temporary files of tests lie: in memory if the machine has the room, else on its disk.

The tests commit some hundred thousand transactions, and each waits for the disk. A process that a test kills loses
nothing that it has written, in memory as on a disk; losing what was not synced takes a loss of power, which no test
brings about. Tests of full disks mount a file system of their own, and fault campaigns stay on the disk,
whose delays stretch the moments at which they kill. A TMPDIR that is set stays.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 4 << 30  # four times what the largest tests, installations of the package, need at a time


def use_memory(memory: Path = _MEMORY, environ: MutableMapping[str, str] = os.environ) -> None:
    """Keep the temporary files of this process and its children in memory, if there is room and programs may run."""
    if "TMPDIR" in environ or environ.get("POSTHOUSE_FAULTS") == "full" or not _is_usable(memory):
        return
    environ["TMPDIR"] = str(memory)
    tempfile.tempdir = None  # else it stays what it was when the first temporary file was made


def _is_usable(memory: Path) -> bool:
    """Return True if a file system is there, has room, and lets the programs that tests write run."""
    try:
        found = os.statvfs(memory)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= _ROOM_BYTES and not found.f_flag & os.ST_NOEXEC
