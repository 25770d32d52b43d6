"""The locks of a relay that shares its store: decided here while it leads, else by the leader.

It takes the same calls as posthouse.relay.locks.service.Locks. An operation that arrives while no leader is known waits
a few seconds for one. If the leader is lost before it has answered, the outcome is unknown: the caller gets leader_lost
and may repeat the operation with its request id. Watches continue at the next leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from posthouse.model.errors import PosthouseError, error
from posthouse.model.lock_api import LockList, LockStatus
from posthouse.relay.accept.mesh_registry import Meshes, Right
from posthouse.relay.cluster.peer_frames import operation_name, unpack_lock_answer
from posthouse.relay.cluster.peer_links import PeerLink
from posthouse.relay.locks.service import Locks, is_never_gone, right_error, settle_future
from posthouse.relay.locks.waiters import LockRequest
from posthouse.relay.locks.watches import LockWatch
from posthouse.relay.metrics import MetricsObserver, NullObserver
from posthouse.relay.wire.lock_operations import Acquire, Inspect, ListLocks, LockAnswer, OnLockAnswer, Watch

Reply = list[Any]
_PATIENCE_S = 6.0  # longer than an election takes
_GONE_CHECK_S = 0.5


class ClusterLocks:
    """The lock service of one relay of several."""

    def __init__(self, meshes: Meshes) -> None:
        self._meshes = meshes
        self._loop = asyncio.get_running_loop()
        #: the locks, while this relay leads
        self.local: Locks | None = None
        #: the connection to the leader, while another relay leads
        self._leader: PeerLink | None = None
        self._changed = asyncio.Event()
        self._observer: MetricsObserver = NullObserver()
        #: watches, each with the number of its request at the leader
        self._watches: dict[LockWatch, tuple[PeerLink, int] | None] = {}
        #: forwarded operations that may wait: a check whether the caller is gone, and how to end its wait
        self._waits: dict[tuple[PeerLink, int], tuple[Callable[[], bool], OnLockAnswer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._start(self._withdraw_gone())

    @property
    def waiters(self) -> int:
        """How many callers wait now for a decision of this relay."""
        return 0 if self.local is None else self.local.waiters

    def observe_with(self, observer: MetricsObserver) -> None:
        """Count operations and waits with this observer from now on."""
        self._observer = observer
        if self.local is not None:
            self.local.observe_with(observer)

    def lead(self, locks: Locks) -> None:
        """Decide here from now on."""
        if self.local is not None:
            self.local.close(error("leader_lost"))
        locks.observe_with(self._observer)
        self.local, self._leader = locks, None
        self._move_watches()

    def follow(self, leader: PeerLink | None) -> None:
        """Ask another relay from now on; None: no leader can be reached."""
        if self.local is not None:
            local, self.local = self.local, None
            local.close(error("leader_lost"))
        elif leader is self._leader:
            return
        self._leader = leader
        self._move_watches()

    def close(self) -> None:
        """Answer every caller that waits."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        if self.local is not None:
            self.local.close()

    def ask(
        self, node: str, request: LockRequest, is_gone: Callable[[], bool] = is_never_gone
    ) -> asyncio.Future[LockAnswer]:
        """Submit one operation of a node; the future is done after the commit."""
        future: asyncio.Future[LockAnswer] = self._loop.create_future()
        self.submit(node, request, partial(settle_future, future), lambda: future.done() or is_gone())
        return future

    def submit(self, node: str, request: LockRequest, on_answer: OnLockAnswer, is_gone: Callable[[], bool]) -> None:
        """Submit one operation as `ask` does; `on_answer` gets the answer."""
        if self.local is not None:
            self.local.submit(node, request, on_answer, is_gone)
        elif self._leader is not None:
            self._forward(self._leader, node, request, on_answer, is_gone)
        else:
            self._start(self._submit_later(node, request, on_answer, is_gone))

    def watch(self, node: str, request: Inspect, on_state: Callable[[LockStatus | PosthouseError], None]) -> LockWatch:
        """Show a lock to a node now and after each change of its holders; raises an error if it may not see it."""
        refusal = right_error(self._meshes, node, request.mesh, Right.READ)
        if refusal is not None:
            raise refusal
        watch = LockWatch(node, request.mesh, request.resource, on_state)
        self._watches[watch] = None
        self._attach(watch)
        return watch

    def end_watch(self, watch: LockWatch) -> None:
        """End a watch."""
        if watch in self._watches:
            self._detach(watch)
            del self._watches[watch]

    async def list(self, node: str, request: ListLocks) -> LockList:
        """Return a page of the locks that a node may see."""
        answer: asyncio.Future[LockAnswer] = self._loop.create_future()
        await self._wait_for_leader(is_never_gone)
        if self.local is not None:
            return await self.local.list(node, request)
        if self._leader is None:
            raise error("leader_unknown")
        self._forward(self._leader, node, request, partial(settle_future, answer), is_never_gone)
        page = await answer
        if isinstance(page, PosthouseError):
            raise page
        assert isinstance(page, LockList)
        return page

    def _forward(
        self,
        leader: PeerLink,
        node: str,
        request: LockRequest | ListLocks,
        on_answer: OnLockAnswer,
        is_gone: Callable[[], bool],
    ) -> None:
        number = 0

        def on_reply(reply: Reply | None) -> None:
            leader.forget(number)
            self._waits.pop((leader, number), None)
            if reply is None:
                on_answer(None, error("leader_lost"))
            else:
                on_answer(unpack_lock_answer(*reply), None)

        number = leader.ask(on_reply, "LOCK", node, operation_name(type(request)), request)
        if isinstance(request, Acquire) and request.wait_ms > 0:
            self._waits[leader, number] = (is_gone, on_answer)

    async def _submit_later(
        self, node: str, request: LockRequest, on_answer: OnLockAnswer, is_gone: Callable[[], bool]
    ) -> None:
        try:
            await self._wait_for_leader(is_gone)
        except asyncio.CancelledError:
            on_answer(error("relay_stopping"), None)
            raise
        if self.local is None and self._leader is None:
            on_answer(error("leader_unknown"), None)
        else:
            self.submit(node, request, on_answer, is_gone)

    async def _wait_for_leader(self, is_gone: Callable[[], bool]) -> None:
        until_s = self._loop.time() + _PATIENCE_S
        while self.local is None and self._leader is None and not is_gone() and self._loop.time() < until_s:
            self._changed.clear()
            with_patience = min(_GONE_CHECK_S, until_s - self._loop.time())
            try:
                await asyncio.wait_for(self._changed.wait(), with_patience)
            except TimeoutError:
                continue

    def _move_watches(self) -> None:
        self._changed.set()
        if not self._is_closed:
            for watch in list(self._watches):
                self._detach(watch)
                self._attach(watch)

    def _attach(self, watch: LockWatch) -> None:
        """Have the relay that decides now report to a watch."""
        if self.local is not None:
            self.local.watches.add(watch)
        elif self._leader is not None:
            operation = Watch(watch.resource, watch.mesh)
            number = self._leader.ask(partial(self._show, watch), "LOCK", watch.node, operation_name(Watch), operation)
            self._watches[watch] = (self._leader, number)

    def _detach(self, watch: LockWatch) -> None:
        asked = self._watches[watch]
        self._watches[watch] = None
        if asked is not None:
            leader, number = asked
            leader.forget(number)
            leader.send("GONE", number)
        elif self.local is not None:
            self.local.watches.remove(watch)

    def _show(self, watch: LockWatch, reply: Reply | None) -> None:
        if reply is None or watch not in self._watches:  # the next leader continues
            return
        state = unpack_lock_answer(*reply)
        if isinstance(state, PosthouseError):
            if state.code == "leader_lost":
                return
            self._watches.pop(watch, None)
        assert isinstance(state, LockStatus | PosthouseError)
        watch.on_state(state)

    async def _withdraw_gone(self) -> None:
        """Report to the leader which of its waiting callers are gone, and end their waits here."""
        while True:
            await asyncio.sleep(_GONE_CHECK_S)
            for (leader, number), (is_gone, on_answer) in list(self._waits.items()):
                if is_gone():
                    del self._waits[leader, number]
                    leader.forget(number)
                    leader.send("GONE", number)
                    on_answer(None, None)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
