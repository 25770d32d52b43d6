"""The memory of a run while it works: of this process, of Spark's JVM, of its Python workers.

Looked at a few times a second. Short peaks between two looks are missed; what grows with the history is not.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from types import TracebackType

from posthouse.bench.pipeline.processes import family

_LOOK_S = 0.25
_MIB = 1 << 20


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
    found: dict[str, int] = defaultdict(int)
    for each in family():
        kind = "driver" if each.pid == os.getpid() else "jvm" if each.name == "java" else "workers"
        found[kind] += each.resident_bytes
    return found
