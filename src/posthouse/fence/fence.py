"""A fence: remembers the highest fencing token it has seen, durably, and refuses lower ones.

    fence = Fence("/srv/db/main.fence")
    fence.admit(token)             # before reading what the write will depend on
    with fence.guard(token):       # around the write
        ...

A holder shows its token before it reads: from then on no former holder can write between this read and this write. A
guard keeps everybody else out while its body runs, so nothing comes between the check and the write. `strict` admits
each token once: right for promoting a pointer, wrong for a holder that writes many times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from posthouse.fence.file import FenceFile
from posthouse.fence.memory import Memory
from posthouse.model.errors import error
from posthouse.model.fence import fence_admits
from posthouse.model.limits import INT64_MAX


class Fence:
    """Guards one thing that a lock protects."""

    def __init__(self, place: str | os.PathLike[str] | Memory, *, strict: bool = False) -> None:
        """Make a fence that remembers in a file, or in a table (`FenceTable`)."""
        self._memory: Memory = FenceFile(place) if isinstance(place, str | os.PathLike) else place
        self._is_strict = strict

    def admit(self, token: int) -> None:
        """Let a token pass and remember it, or raise fence_stale."""
        with self.guard(token):
            pass

    @contextmanager
    def guard(self, token: int) -> Iterator[None]:
        """Let a token pass, and nobody else while the body writes; or raise fence_stale.

        The token is remembered before the body runs: a crash in it can only make the fence stricter.
        """
        if type(token) is not int or not 1 <= token <= INT64_MAX:
            raise error("token_not_positive", token=token)
        with self._memory.open() as slot:
            last_seen = slot.read()
            if not fence_admits(last_seen, token, self._is_strict):
                raise error("fence_stale", resource=self._memory.name, token=token, last_seen=last_seen)
            if token != last_seen:
                slot.write(token)
            yield

    def last_seen(self) -> int | None:
        """Return the highest token that has passed, None when there was none."""
        with self._memory.open() as slot:
            return slot.read()
