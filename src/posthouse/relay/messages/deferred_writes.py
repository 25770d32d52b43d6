"""Writes of reader sessions that no caller waits for: sent, read, attempt counted.

They are applied in order, in the background, by the group committer: they join the next urgent group or leave after
5 ms. Only the next session of the same node waits for them. A store without room makes them wait for a retry, within a
bound; a lost write costs a reader at most a count of attempts, and its sender is told that the message waited. If
several relays share the store, each write carries the number of its session: what a session deferred before a newer
one began elsewhere is dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import structlog

from posthouse.model.errors import PosthouseError, Transient
from posthouse.relay.accept.group_commit import GroupCommitter
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.shared_store import SharedStore

log = structlog.get_logger(__name__)
#: mesh and node
Name = tuple[str, str]
_MAX_REFUSED = 10_000  # deferred writes that wait for a store without room


class _DeferredWrite(NamedTuple):
    name: Name
    #: of the session that it belongs to; 0: of no session
    number: int
    work: Callable[[Unit], Any]
    on_done: Callable[[Any], None] | None


_DROPPED: Any = object()  # stands for the result of a write that was not made


class DeferredWrites:
    """Writes of sessions that no caller waits for, in order."""

    def __init__(self, committer: GroupCommitter, shared: SharedStore | None) -> None:
        self._committer = committer
        self._shared = shared
        #: number of the newest session of each name here, if the store is shared
        self.numbers: dict[Name, int] = {}
        #: how many writes of a name are not committed
        self._pending: dict[Name, int] = {}
        self._waiters: dict[Name, list[asyncio.Future[None]]] = {}
        self._refused: deque[_DeferredWrite] = deque(maxlen=_MAX_REFUSED)

    def defer(self, name: Name, work: Callable[[Unit], Any], on_done: Callable[[Any], None] | None = None) -> None:
        """Write in the background; `on_done` is called with the result after the commit."""
        self._defer(_DeferredWrite(name, self.numbers.get(name, 0), work, on_done))

    def _defer(self, write: _DeferredWrite) -> None:
        self._pending[write.name] = self._pending.get(write.name, 0) + 1
        self._committer.defer(self, write)

    async def settled(self, name: Name) -> None:
        """Wait until the writes of a name are committed or refused."""
        while name in self._pending:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(name, []).append(waiter)  # before the flush, which a closed store refuses at once
            self._committer.flush_deferred()
            await waiter

    def retry(self) -> None:
        """Defer the writes again that a store without room refused."""
        refused = list(self._refused)
        self._refused.clear()
        for each in refused:
            self._defer(each)

    def write(self, unit: Unit, jobs: Sequence[_DeferredWrite]) -> list[Any]:
        """Write inside the transaction, but for sessions that a newer one replaced; called by the committer."""
        if self._shared is None or not any(each.number for each in jobs):
            return [each.work(unit) for each in jobs]
        numbers = self._shared.session_numbers(list({each.name for each in jobs}))
        return [
            each.work(unit) if not each.number or numbers.get(each.name) == each.number else _DROPPED for each in jobs
        ]

    def on_committed(self, jobs: Sequence[_DeferredWrite], result: list[Any]) -> None:
        """Notify sessions; called by the committer."""
        self._finish(jobs)
        for each, value in zip(jobs, result, strict=True):
            if each.on_done is not None and value is not _DROPPED:
                each.on_done(value)

    def on_failed(self, jobs: Sequence[_DeferredWrite], failure: BaseException) -> None:
        """Keep writes for a retry, or give up; called by the committer."""
        if isinstance(failure, Transient):
            self._refused.extend(jobs)
        elif isinstance(failure, PosthouseError):  # the store is closed or has failed
            log.warning("deliveries_not_noted", reason=str(failure))
        else:
            log.error("deliveries_not_noted", reason=repr(failure), exc_info=failure)
        self._finish(jobs)

    def _finish(self, jobs: Sequence[_DeferredWrite]) -> None:
        for each in jobs:
            self._pending[each.name] -= 1
            if not self._pending[each.name]:
                del self._pending[each.name]
                for waiter in self._waiters.pop(each.name, ()):
                    if not waiter.done():  # the session may be gone
                        waiter.set_result(None)
