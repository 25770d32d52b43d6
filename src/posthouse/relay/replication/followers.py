"""Followers of this relay: send a copy of the store, then the recorded changes, to the nodes that may follow.

A node follows only if the relay's operator lists it in `relay.followers`: a copy holds everything that the relay has.
Recording begins with the first copy and ends when no follower has asked for a while, so that a relay without followers
pays nothing. A follower that was offline for too long has to take a new copy; nothing waits for a slow one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import structlog

from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.limits import MIB, SECOND_NS
from posthouse.relay.store.copies import ChangeLog
from posthouse.relay.wire.change_groups import ChangesPage, StreamPosition

log = structlog.get_logger(__name__)
ABSENT_S = 3_600.0
PAGE_BYTES = 4 * MIB  # of changes in one answer: a follower applies them in one transaction
WAIT_MAX_S = 20.0
_CHECKS_PER_ABSENCE = 4


@dataclass(frozen=True)
class FollowSettings:
    """Which nodes may follow, and how long a relay records for followers that do not ask."""

    nodes: frozenset[str] = frozenset()
    absent_s: float = ABSENT_S


@dataclass(frozen=True, slots=True)
class _Asked:
    """The position of a follower at its last request."""

    number: int
    head: int


class Followers:
    """Serves followers of one relay, on the event loop."""

    def __init__(self, changes: ChangeLog | None, directory: Path, clock: Clock, settings: FollowSettings) -> None:
        self._changes = changes
        self._directory = directory
        self._clock = clock
        self.settings = settings
        self._asked: dict[str, _Asked] = {}
        self._last_asked_ns = clock.boot_ns()
        self._recorded = asyncio.Event()
        self._copying = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """Continue the recording of the last run if there may still be followers."""
        if self._changes is None:
            return
        _remove_leftovers(self._directory)
        self._changes.listen(partial(_call_on, asyncio.get_running_loop(), self._notify))
        if self._changes.is_on and not self.settings.nodes:
            await self._changes.stop()
        self._task = asyncio.create_task(self._watch_absence(), name="followers")

    def stop_waiting(self) -> None:
        """Answer the requests that wait for changes, and let no new request wait: the relay is stopping."""
        self._is_stopping = True
        self._notify()

    async def close(self) -> None:
        """End the task; the recording stays for the next run."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def open_copy(self, node: str) -> IO[bytes]:
        """Return a copy of the store as an open file that has no name; changes are recorded from before the copy on."""
        changes = self._require(node)
        async with self._copying:  # one at a time: each takes the space and the reads of a whole store
            self._note_asked()
            await changes.start()
            file = await asyncio.to_thread(_copy, changes, self._directory)
        self._note_asked()
        log.info("copy_for_follower", node=node)
        return file

    async def read(self, node: str, after: StreamPosition, head: int, wait_s: float) -> ChangesPage:
        """Return the changes after a position; wait up to `wait_s` for the first one."""
        changes = self._require(node)
        self._note_asked()
        self._asked[node] = _Asked(after.number, head)
        recorded = self._recorded
        page = await changes.read(after, PAGE_BYTES)
        if not page.groups and wait_s > 0 and not self._is_stopping:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(recorded.wait(), min(wait_s, WAIT_MAX_S))
            page = await changes.read(after, PAGE_BYTES)
        self._note_asked()
        return page

    @property
    def count(self) -> int:
        """How many nodes have followed since the recording began."""
        return len(self._asked)

    @property
    def lag_records(self) -> int:
        """How many records the slowest follower lacks, as of its last request."""
        kept = () if self._changes is None else self._changes.kept()
        return max([kept[-1].head - each.head for each in self._asked.values()], default=0) if kept else 0

    @property
    def lag_s(self) -> float:
        """Age of the oldest change after the position that the slowest follower last asked for."""
        kept = () if self._changes is None else self._changes.kept()
        number = min([each.number for each in self._asked.values()], default=None)
        if number is None:
            return 0.0
        at = bisect_right(kept, number, key=lambda group: group.number)
        return max(0.0, (self._clock.wall_ns() - kept[at].at_ns) / SECOND_NS) if at < len(kept) else 0.0

    def _require(self, node: str) -> ChangeLog:
        if node not in self.settings.nodes:
            raise error("follow_not_allowed", node=node)
        if self._changes is None:
            raise error("follow_unsupported")
        return self._changes

    def _note_asked(self) -> None:
        self._last_asked_ns = self._clock.boot_ns()

    def _notify(self) -> None:
        self._recorded.set()
        self._recorded = asyncio.Event()

    async def _watch_absence(self) -> None:
        while True:
            await asyncio.sleep(self.settings.absent_s / _CHECKS_PER_ABSENCE)
            absent_s = (self._clock.boot_ns() - self._last_asked_ns) / SECOND_NS
            changes = self._changes
            if changes is not None and changes.is_on and absent_s > self.settings.absent_s:
                with contextlib.suppress(Exception):  # a full disk: the next round tries again
                    await changes.stop()
                    self._asked.clear()
                    log.warning("followers_absent", seconds=round(absent_s), reason="changes are no longer recorded")


def _call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(callback)


_SUFFIX = ".follow"


def _copy(changes: ChangeLog, directory: Path) -> IO[bytes]:
    path = directory / f".copy.{secrets.token_hex(8)}{_SUFFIX}"
    try:
        changes.copy(path)
        return path.open("rb")
    finally:
        path.unlink(missing_ok=True)


def _remove_leftovers(directory: Path) -> None:
    """Remove the copies of a relay that was killed; the lock of the directory proves that none is being made."""
    for pattern in (f".copy.*{_SUFFIX}", f"..copy.*{_SUFFIX}.*.tmp"):
        for leftover in directory.glob(pattern):
            leftover.unlink(missing_ok=True)
