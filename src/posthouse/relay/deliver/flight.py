"""What is in flight on one connection: rows that were sent there and are not confirmed, oldest first.

Within one connection nothing is sent twice, so a seq stands here once. Progress is a row that left by a confirmation,
a refusal or any other end; the time of the last one decides when a reader counts as stuck.
"""

from __future__ import annotations

from collections.abc import Iterable


class Flight:
    """The rows in flight, and when something last happened to them; times are boot time."""

    def __init__(self, window: int) -> None:
        self.window = window
        self._seqs: dict[int, None] = {}
        self._progress_ns = 0

    def __len__(self) -> int:
        return len(self._seqs)

    @property
    def room(self) -> int:
        """How many more rows may be sent."""
        return self.window - len(self._seqs)

    @property
    def seqs(self) -> list[int]:
        return list(self._seqs)

    @property
    def oldest(self) -> int | None:
        """The row that was sent first."""
        return next(iter(self._seqs), None)

    def add(self, seqs: Iterable[int], now_ns: int) -> None:
        """Note rows as sent."""
        if not self._seqs:
            self._progress_ns = now_ns
        self._seqs.update(dict.fromkeys(seqs))

    def land(self, seqs: Iterable[int], now_ns: int) -> bool:
        """Take rows out that have ended; return whether one of them was in flight."""
        before = len(self._seqs)
        for seq in seqs:
            self._seqs.pop(seq, None)
        if len(self._seqs) == before:
            return False
        self._progress_ns = now_ns
        return True

    def touch(self, now_ns: int) -> None:
        """Count something else as progress."""
        self._progress_ns = now_ns

    def stuck_ns(self, now_ns: int) -> int:
        """Return for how long nothing has happened while rows were in flight."""
        return now_ns - self._progress_ns if self._seqs else 0
