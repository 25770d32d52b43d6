"""The memory of a run while it works: of this process, of Spark's JVM, of its Python workers.

Looked at from the outside, a few times a second, in what the kernel tells of every process below this one. Short peaks
between two looks are missed; what grows with the history is not.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

from posthouse.bench.bus.memory import resident_bytes

_LOOK_S = 0.25
_MIB = 1 << 20
_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PARENT, _RESIDENT = 1, 21  # fields of /proc/PID/stat behind the name


class MemoryWatch:
    """Remembers the most that each kind of process had while the watch was open; a context manager."""

    def __init__(self) -> None:
        self._most: dict[str, int] = defaultdict(int)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def value(self) -> dict[str, int]:
        """Return the peaks in MiB: this process, the JVM, all workers together."""
        return {name: self._most[name] // _MIB for name in ("driver", "jvm", "workers")}

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_S):
            for name, found in _resident().items():
                self._most[name] = max(self._most[name], found)


def _resident() -> dict[str, int]:
    """Return the bytes that each kind of process has now."""
    found: dict[str, int] = defaultdict(int, driver=resident_bytes())
    processes = _processes()
    below = {os.getpid()}
    while fresh := {pid for pid, (parent, _, _) in processes.items() if parent in below} - below:
        below |= fresh
    for pid in below - {os.getpid()}:
        _, name, size = processes[pid]
        found["jvm" if name == "java" else "workers"] += size
    return found


def _processes() -> dict[int, tuple[int, str, int]]:
    """Return every process: its parent, its name, its resident bytes."""
    found: dict[int, tuple[int, str, int]] = {}
    for path in _PROC.glob("[0-9]*/stat"):
        try:
            head, _, rest = path.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        fields = rest.split()
        found[int(path.parent.name)] = (
            int(fields[_PARENT]),
            head.partition("(")[2],
            int(fields[_RESIDENT]) * _PAGE_BYTES,
        )
    return found
