"""Watches of locks: each watcher learns the state of a lock at once, and again whenever its holders change.

All watchers of a name share one read, and changes that happen during it share the next one. So a busy lock costs at
most one read per commit, and a watcher sees the newest state, not every state. A lease that merely runs out changes
nothing in the store: watches read again when it should be over. A renewal changes no holder and is not shown.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence

from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.lease import LockRow, LockView
from posthouse.model.limits import LOCK_WATCHERS_MAX, SECOND_NS
from posthouse.model.lock_api import LockStatus
from posthouse.model.lock_scope import covers

_LOOK_EVERY_S = 0.5  # boot time runs ahead of the loop's clock after a suspend
#: Called with the view and the number of waiters, or with the error if they cannot be read.
OnView = Callable[[LockView | PosthouseError, int], None]


class LockWatch:
    """One watcher of one lock."""

    def __init__(self, node: str, mesh: str, resource: str, on_state: Callable[[LockStatus | PosthouseError], None]):
        self.node = node
        self.mesh = mesh
        self.resource = resource
        self.on_state = on_state
        #: the state that it was last shown, without the parts that change by themselves
        self.shown: object = None


class _Watched:
    """One name and its watchers."""

    def __init__(self, mesh: str, resource: str) -> None:
        self.mesh = mesh
        self.resource = resource
        self.watches: set[LockWatch] = set()
        self.is_reading = False
        self.is_stale = False
        #: boot time of the next planned read
        self.look_at_ns: int | None = None

    def __lt__(self, other: _Watched) -> bool:  # ties in the heap
        return self.resource < other.resource


class LockWatches:
    """All watches of a relay."""

    def __init__(
        self,
        clock: Clock,
        read: Callable[[str, str, OnView], None],
        state_of: Callable[[str, str, LockView, int], LockStatus],
    ) -> None:
        self._clock = clock
        self._read = read
        self._state_of = state_of
        self._loop = asyncio.get_running_loop()
        #: mesh -> resource -> its watchers
        self._names: dict[str, dict[str, _Watched]] = {}
        self._count = 0
        #: when leases of watched names end
        self._ends: list[tuple[int, _Watched]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __len__(self) -> int:
        return self._count

    def add(self, watch: LockWatch) -> None:
        """Show a lock to a watcher now and after each change; raises lock_watch_limit."""
        if self._count >= LOCK_WATCHERS_MAX:
            raise error("lock_watch_limit", limit=LOCK_WATCHERS_MAX)
        names = self._names.setdefault(watch.mesh, {})
        watched = names.setdefault(watch.resource, _Watched(watch.mesh, watch.resource))
        watched.watches.add(watch)
        self._count += 1
        self._refresh(watched)

    def remove(self, watch: LockWatch) -> None:
        """End a watch."""
        names = self._names.get(watch.mesh, {})
        watched = names.get(watch.resource)
        if watched is None or watch not in watched.watches:
            return
        watched.watches.remove(watch)
        self._count -= 1
        if not watched.watches:
            del names[watch.resource]
            if not names:
                del self._names[watch.mesh]

    def end_unauthorized(self, mesh: str, refusal_of: Callable[[str], PosthouseError | None]) -> None:
        """End the watches of nodes that may no longer read a mesh; `refusal_of` says why, given the node."""
        for watch in [each for name in self._names.get(mesh, {}).values() for each in name.watches]:
            refusal = refusal_of(watch.node)
            if refusal is not None:
                self.remove(watch)
                watch.on_state(refusal)

    def on_change(self, mesh: str, rows: Sequence[LockRow]) -> None:
        """Read the watched names that these leases cover again."""
        names = self._names.get(mesh)
        if names is None:
            return
        for row in rows:
            if row.is_tree:
                for watched in [each for each in names.values() if covers(row, each.resource)]:
                    self._refresh(watched)
            elif (found := names.get(row.resource)) is not None:
                self._refresh(found)

    def close(self) -> None:
        """End the timer."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _refresh(self, watched: _Watched) -> None:
        if watched.is_reading or self._is_closed:
            watched.is_stale = True
            return
        watched.is_reading, watched.is_stale = True, False
        try:
            self._read(watched.mesh, watched.resource, lambda view, waiting: self._show(watched, view, waiting))
        except PosthouseError as busy:
            self._show(watched, busy, 0)

    def _show(self, watched: _Watched, view: LockView | PosthouseError, waiting: int) -> None:
        watched.is_reading = False
        if isinstance(view, PosthouseError):  # the store cannot be read now: try again soon
            self._look_at(self._clock.boot_ns(), watched)
            return
        shown = (view.held, [(row.resource, row.owner, row.token, row.is_shared) for row in view.holders])
        for watch in [each for each in watched.watches if each.shown != shown]:
            watch.shown = shown
            watch.on_state(self._state_of(watch.node, watch.mesh, view, waiting))
        if view.held:
            self._look_at(min(row.deadline_boot_ns for row in view.holders), watched)
        if watched.is_stale:
            self._refresh(watched)

    def _look_at(self, boot_ns: int, watched: _Watched) -> None:
        if watched.look_at_ns is not None and watched.look_at_ns <= boot_ns:
            return
        watched.look_at_ns = boot_ns
        heapq.heappush(self._ends, (boot_ns, watched))
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(self._delay_s(), self._look)

    def _delay_s(self) -> float:
        rest_s = (self._ends[0][0] - self._clock.boot_ns()) / SECOND_NS
        return min(max(rest_s, 0.01), _LOOK_EVERY_S)

    def _look(self) -> None:
        """Read the watched names whose leases should be over."""
        self._timer = None
        now_ns = self._clock.boot_ns()
        while self._ends and self._ends[0][0] <= now_ns:
            _, watched = heapq.heappop(self._ends)
            watched.look_at_ns = None
            if watched.watches:
                self._refresh(watched)
        if self._ends and self._timer is None:
            self._timer = self._loop.call_later(self._delay_s(), self._look)
