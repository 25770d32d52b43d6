"""A lock held around a piece of work: `async with client.lock("db/main", lease_s=30) as held`.

It is acquired on entry, renewed at a third of the lease and released on exit. If the lease is lost, because the relay
refuses to renew it or no renewal succeeds in time, the body is cancelled and `lock_lost` is raised. The deadline is
this node's own: it counts in boot time from before the request was sent, less a margin for clocks that run at
different speeds, so it ends before the relay's. Wall time from the relay is never compared with anything. A process
that is stopped or suspended can still outlive its lease: only the fencing token protects against its late writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType

from posthouse.client.failures import Backoff, retry_after_s
from posthouse.client.locks.lock_calls import LockCalls, LockMode
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.limits import LOCK_WAIT_MAX_MS, MILLISECOND_NS, SECOND_NS
from posthouse.model.ulid import UlidGenerator

MARGIN = 0.05  # of the lease: two clocks whose speeds differ by more are broken


class Held:
    """A lock that this process holds."""

    def __init__(
        self, resource: str, mesh: str, token: int, lease_ms: int, requested_boot_ns: int, clock: Clock
    ) -> None:
        self.resource = resource
        self.mesh = mesh
        #: the fencing token: send it with every protected write
        self.token = token
        self.lease_ms = lease_ms
        self._clock = clock
        self._deadline_boot_ns = 0
        self._is_over = False
        self.extend(requested_boot_ns)

    def is_valid(self) -> bool:
        """Return True while the lock is certainly held; check right before each protected action."""
        return not self._is_over and self._clock.boot_ns() < self._deadline_boot_ns

    def remaining_s(self) -> float:
        """Return how long the lock is still certainly held."""
        return 0.0 if self._is_over else max(0.0, (self._deadline_boot_ns - self._clock.boot_ns()) / SECOND_NS)

    def extend(self, requested_boot_ns: int) -> None:
        """Count the lease from the time at which its renewal was requested."""
        length_ns = round(self.lease_ms * MILLISECOND_NS * (1 - MARGIN))
        self._deadline_boot_ns = max(self._deadline_boot_ns, requested_boot_ns + length_ns)

    def end(self) -> None:
        """Mark the lock as no longer held."""
        self._is_over = True


log = logging.getLogger(__name__)
RENEW_AT = 1 / 3  # of the lease: leaves two more attempts before it ends
_RECHECK_S = 1.0  # the loop's clock stops while the machine sleeps, the lease does not
_RETRY_MAX_S = 1.0
_RELEASE_S = 5.0  # if a release takes longer, the lease ends by itself
_NOT_HELD = frozenset({"not_holder", "stale_token", "lease_expired", "unknown_resource"})


class Lock:
    """One use of a lock; made by `Client.lock`, good for one `async with`. Each is a session of its own."""

    def __init__(
        self,
        calls: LockCalls,
        clock: Clock,
        minter: UlidGenerator,
        resource: str,
        mesh: str,
        lease_ms: int,
        wait_s: float | None,
        *,
        session: str | None = None,
        mode: LockMode = "exclusive",
        tree: bool = False,
        also: Sequence[str] = (),
    ) -> None:
        #: other Lock objects of the same node wait for this one
        self.session = minter.mint() if session is None else session
        #: unique for this session: its own id, unless other locks use it too
        self._request_id = self.session if session is None else minter.mint()
        self._mode: LockMode = mode
        self._tree = tree
        self._also = tuple(also)
        self._calls = calls
        self._clock = clock
        self._minter = minter
        self._resource = resource
        self._mesh = mesh
        self._lease_ms = lease_ms
        self._wait_s = wait_s
        self._held: Held | None = None
        self._body: asyncio.Task[object] | None = None
        self._first_check: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._cancels_before = 0
        self._loss: PosthouseError | None = None

    async def __aenter__(self) -> Held:
        held = self._held = await self._acquire()
        self._body = asyncio.current_task()
        assert self._body is not None
        self._cancels_before = self._body.cancelling()
        due_ns = self._clock.boot_ns() + self._third_ns
        delay_s = min(self._third_ns / SECOND_NS, _RECHECK_S)  # most locks are released before: they need no task
        self._first_check = asyncio.get_running_loop().call_later(delay_s, self._begin_renewing, held, due_ns)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, first_check, body = self._held, self._first_check, self._body
        assert held is not None and first_check is not None and body is not None
        first_check.cancel()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._loss is None and not held.is_valid():
            self._loss = self._lost(held, "the lease ended before this was noticed")
        held.end()
        if self._loss is None:
            await self._release(held)
            return
        # as in asyncio.timeout: only the cancellation that this lock caused becomes lock_lost
        was_ours = body.cancelling() > self._cancels_before and body.uncancel() <= self._cancels_before
        if kind is None or (kind is asyncio.CancelledError and was_ours):
            raise self._loss from fault

    async def _acquire(self) -> Held:
        end_ns = None if self._wait_s is None else self._clock.boot_ns() + round(self._wait_s * SECOND_NS)
        backoff = Backoff(0.05, _RETRY_MAX_S)
        while True:
            try:
                return await self._request(end_ns)
            except PosthouseError as refusal:
                if not _may_retry(refusal) or self._remaining_ms(end_ns) == 0:
                    raise
                if refusal.code != "held":
                    await asyncio.sleep(max(retry_after_s(refusal), backoff.next_s()))
                if refusal.code in _NOT_HELD or refusal.code == "request_spent":
                    self._request_id = self._minter.mint()  # the grant ended before its answer arrived

    async def _request(self, end_ns: int | None) -> Held:
        requested_ns = self._clock.boot_ns()
        grant = await self._calls.acquire(
            self._resource,
            lease_ms=self._lease_ms,
            wait_ms=self._remaining_ms(end_ns),
            request_id=self._request_id,
            mesh=self._mesh,
            session=self.session,
            mode=self._mode,
            tree=self._tree,
            also=self._also,
        )
        held = Held(self._resource, self._mesh, grant.token, self._lease_ms, requested_ns, self._clock)
        if held.remaining_s() < self._lease_ms / 1000 * (1 - RENEW_AT):
            try:
                await self._renew(held)  # after a wait or a retry the start of the lease is unknown
            except BaseException:
                self._calls.give_back(self._resource, grant.token, mesh=self._mesh, also=self._also)
                raise
        return held

    def _remaining_ms(self, end_ns: int | None) -> int:
        if end_ns is None:
            return LOCK_WAIT_MAX_MS
        return max(0, min(LOCK_WAIT_MAX_MS, (end_ns - self._clock.boot_ns()) // MILLISECOND_NS))

    def _begin_renewing(self, held: Held, due_ns: int) -> None:
        self._renewing = asyncio.create_task(self._keep(held, due_ns))

    async def _keep(self, held: Held, due_ns: int) -> None:
        """Renew at `due_ns` and so on until cancelled, or cancel the body when the lease is lost."""
        while held.is_valid():
            wait_s = (due_ns - self._clock.boot_ns()) / SECOND_NS
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, held.remaining_s(), _RECHECK_S))
                continue
            try:
                await self._renew(held)
            except Transient as refusal:
                log.info("the lease of %r is not renewed yet: %s", self._resource, refusal)
                await asyncio.sleep(min(_RETRY_MAX_S / 5, held.remaining_s()))
                continue
            except PosthouseError as refusal:
                self._lose(held, str(refusal))
                return
            due_ns = self._clock.boot_ns() + self._third_ns
        self._lose(held, "no renewal succeeded in time")

    @property
    def _third_ns(self) -> int:
        return round(self._lease_ms * MILLISECOND_NS * RENEW_AT)

    async def _renew(self, held: Held) -> None:
        requested_ns = self._clock.boot_ns()
        timeout_s = held.remaining_s() or self._lease_ms / 1000
        await self._calls.renew(
            self._resource,
            held.token,
            lease_ms=self._lease_ms,
            mesh=self._mesh,
            timeout_s=timeout_s,
            session=self.session,
            also=self._also,
        )
        held.extend(requested_ns)

    def _lose(self, held: Held, reason: str) -> None:
        held.end()
        self._loss = self._lost(held, reason)
        log.info("%s", self._loss)  # the body gets it as an exception
        if self._body is not None:
            self._body.cancel()

    def _lost(self, held: Held, reason: str) -> PosthouseError:
        return error("lock_lost", resource=self._resource, token=held.token, reason=reason)

    async def _release(self, held: Held) -> None:
        try:
            await self._calls.release(
                self._resource,
                held.token,
                mesh=self._mesh,
                timeout_s=_RELEASE_S,
                session=self.session,
                also=self._also,
            )
        except PosthouseError as refusal:
            # a release that was sent twice over a reconnect finds the lock free the second time
            if refusal.code not in _NOT_HELD:
                log.info("%r stays locked until its lease ends: %s", self._resource, refusal)


def _may_retry(refusal: PosthouseError) -> bool:
    return isinstance(refusal, Transient) or refusal.code in _NOT_HELD | {"held", "request_spent"}
