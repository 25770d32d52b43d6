"""Single operations on locks over the stream: acquire, renew, release, break, inspect, watch, list.

For callers that keep token and deadline themselves; `Client.lock` holds a lock around a piece of work. After a
reconnect every unanswered operation is sent again; request ids and tokens make that safe. If the relay grants a lock
to a caller that has been cancelled, the lock is released at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from posthouse.client.locks.lock_watches import LockWatches
from posthouse.client.stream.frames import read_lock_answer, write_command
from posthouse.client.stream.pending import Answer, Kind, Pending, PendingCommands
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import LOCK_WAIT_MAX_MS, MILLISECOND_NS
from posthouse.model.lock_api import LockGrant, LockList, LocksBroken, LockStatus

LockMode = Literal["exclusive", "shared"]
_KEPT_REQUESTS = 1_000


class _LockRequest(Pending):
    """One operation on a lock without an answer, and the future of its caller."""

    __slots__ = ("_commands", "arguments", "future", "op", "remaining_ms", "request_id")

    def __init__(
        self,
        commands: LockCommands,
        number: str,
        op: str,
        arguments: Mapping[str, Any],
        remaining_ms: Callable[[], int] | None,
    ) -> None:
        self.op = op
        self.arguments = arguments
        self.request_id: str | None = arguments.get("request_id")
        #: returns the remaining wait of an acquire, which gets shorter with each retry
        self.remaining_ms = remaining_ms
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._commands = commands
        super().__init__(Kind.LOCK, number, b"")
        self.command = self.encode_again()

    def encode_again(self) -> bytes:
        arguments = dict(self.arguments)
        if self.remaining_ms is not None:
            arguments["wait_ms"] = self.remaining_ms()
        if not self._commands.has_sessions:  # to such a relay the whole node is one holder
            arguments.pop("session", None)
        return write_command("LOCK", self.key, self.op, arguments)

    def on_answer(self, answer: Answer) -> None:
        self._commands.on_answer(self, answer)

    def expire(self) -> None:
        """End the wait of the caller; a timer costs a fraction of `asyncio.timeout`."""
        if not self.future.done():
            self.future.set_exception(TimeoutError())


class LockCommands:
    """Sends operations on locks and waits for their answers."""

    def __init__(self, commands: PendingCommands) -> None:
        self._commands = commands
        self.watches = LockWatches(commands)
        self.origin = commands.link.origin
        self._numbers = itertools.count(1)
        #: request id -> unanswered acquires under it
        self._waiting: dict[str, int] = {}
        #: request ids whose grants reached a caller, the newest last
        self._granted: dict[str, None] = {}

    @property
    def has_sessions(self) -> bool:
        """Whether the relay supports sessions; an older one refuses the field."""
        return self._commands.link.supports("lock_sessions")

    async def request(
        self,
        op: str,
        arguments: Mapping[str, Any],
        timeout_s: float,
        remaining_ms: Callable[[], int] | None = None,
    ) -> Any:
        """Return the answer to an operation as plain values, or raise its refusal."""
        request = _LockRequest(self, f"l{next(self._numbers)}", op, arguments, remaining_ms)
        if request.request_id is not None:
            self._waiting[request.request_id] = self._waiting.get(request.request_id, 0) + 1
        self._commands.add(request)
        timer = asyncio.get_running_loop().call_later(timeout_s, request.expire)
        try:
            answer = await request.future
        except TimeoutError as late:
            self._forget(request)
            raise self._commands.timeout_error(request, timeout_s, f"LOCK {op}") from late
        except asyncio.CancelledError:
            if op == "acquire":  # stays in the table for this connection, to return a lock that it may be granted
                request.is_resent = False
            else:
                self._forget(request)
            raise
        finally:
            timer.cancel()
        if isinstance(answer, PosthouseError):
            raise answer
        return answer

    def release_nowait(self, resource: str, mesh: str, token: int, also: Sequence[str] = ()) -> None:
        """Release a lock without waiting for the answer."""
        arguments: dict[str, Any] = {"resource": resource, "mesh": mesh, "token": token}
        if also:
            arguments["also"] = list(also)
        self._commands.link.send(write_command("LOCK", f"l{next(self._numbers)}", "release", arguments))

    def on_answer(self, request: _LockRequest, answer: Answer) -> None:
        """Pass an answer to its caller, or return a lock that was granted to a caller that has left."""
        self._stop_waiting(request)
        if not request.future.done():
            if request.op == "acquire" and not isinstance(answer, PosthouseError):
                self._note_granted(request.request_id)
            request.future.set_result(answer)
        elif request.op == "acquire" and not isinstance(answer, PosthouseError):
            self._return_grant(request, read_lock_answer(answer, LockGrant, self.origin).token)

    def _forget(self, request: _LockRequest) -> None:
        self._commands.discard(request)
        self._stop_waiting(request)

    def _stop_waiting(self, request: _LockRequest) -> None:
        if request.request_id is not None:
            left = self._waiting.pop(request.request_id, 0) - 1
            if left > 0:
                self._waiting[request.request_id] = left

    def _return_grant(self, request: _LockRequest, token: int) -> None:
        """Release a grant without a caller, unless another caller uses the same request id and so shares it."""
        request_id = request.request_id
        if request_id is None or not (request_id in self._waiting or request_id in self._granted):
            arguments = request.arguments
            self.release_nowait(arguments["resource"], arguments["mesh"], token, arguments.get("also", ()))

    def _note_granted(self, request_id: str | None) -> None:
        if request_id is not None:
            self._granted[request_id] = None
            while len(self._granted) > _KEPT_REQUESTS:
                del self._granted[next(iter(self._granted))]


class LockCalls:
    """The locks of one relay: single operations."""

    def __init__(
        self, commands: LockCommands, clock: Clock, timeout_s: float, mesh: str, connect: Callable[[], Awaitable[None]]
    ) -> None:
        self._commands = commands
        self._clock = clock
        self._timeout_s = timeout_s
        self._mesh = mesh
        self._connect = connect

    async def acquire(
        self,
        resource: str,
        *,
        lease_ms: int,
        wait_ms: int = 0,
        request_id: str | None = None,
        mesh: str | None = None,
        session: str = "",
        mode: LockMode = "exclusive",
        tree: bool = False,
        also: Sequence[str] = (),
    ) -> LockGrant:
        """Acquire a lock, or several at once, waiting up to `wait_ms`; raises `held` or another refusal.

        The same `request_id` makes a retry safe: the relay repeats its grant instead of making a second one. Sessions
        of one node exclude each other; `mode` is "shared" or "exclusive"; a `tree` also locks all names below.
        """
        end_ns = self._clock.boot_ns() + wait_ms * MILLISECOND_NS
        arguments: dict[str, Any] = {"resource": resource, "lease_ms": lease_ms, "mesh": mesh or self._mesh}
        if request_id is not None:
            arguments["request_id"] = request_id
        if mode != "exclusive":
            arguments["mode"] = mode
        if tree:
            arguments["tree"] = True
        arguments |= _holding(session or None, also)

        def remaining_ms() -> int:
            return min(max(0, (end_ns - self._clock.boot_ns()) // MILLISECOND_NS), LOCK_WAIT_MAX_MS)

        await self._connect()
        timeout_s = self._timeout_s + wait_ms / 1000
        value = await self._commands.request("acquire", arguments, timeout_s, remaining_ms if wait_ms else None)
        return read_lock_answer(value, LockGrant, self._commands.origin)

    async def renew(
        self,
        resource: str,
        token: int,
        *,
        lease_ms: int,
        mesh: str | None = None,
        timeout_s: float | None = None,
        session: str | None = None,
        also: Sequence[str] = (),
    ) -> LockGrant:
        """Renew an active lease, or all leases of one grant; it counts from now."""
        arguments = {"resource": resource, "token": token, "lease_ms": lease_ms, "mesh": mesh or self._mesh}
        value = await self._request("renew", arguments | _holding(session, also), timeout_s)
        return read_lock_answer(value, LockGrant, self._commands.origin)

    async def release(
        self,
        resource: str,
        token: int,
        *,
        mesh: str | None = None,
        timeout_s: float | None = None,
        session: str | None = None,
        also: Sequence[str] = (),
    ) -> None:
        """Release a lock, or all locks of one grant; without a session, whichever session of this node has it."""
        arguments = {"resource": resource, "token": token, "mesh": mesh or self._mesh}
        await self._request("release", arguments | _holding(session, also), timeout_s)

    def give_back(self, resource: str, token: int, *, mesh: str | None = None, also: Sequence[str] = ()) -> None:
        """Release a lock without waiting for the answer; if it gets lost, the lease ends by itself."""
        self._commands.release_nowait(resource, mesh or self._mesh, token, also)

    async def break_lock(
        self, resource: str, *, token: int | None = None, mesh: str | None = None, via: str | None = None
    ) -> LocksBroken:
        """End the leases of all holders of a lock, or the one with a token; for admins of the mesh.

        `via` names the program through which a person acts, for the journal.
        """
        arguments: dict[str, Any] = {"resource": resource, "mesh": mesh or self._mesh}
        arguments |= {name: value for name, value in (("token", token), ("via", via)) if value is not None}
        return read_lock_answer(await self._request("break", arguments, None), LocksBroken, self._commands.origin)

    async def inspect(self, resource: str, *, mesh: str | None = None) -> LockStatus:
        """Return the state of a lock: its holder, its token and the rest of its lease."""
        value = await self._request("inspect", {"resource": resource, "mesh": mesh or self._mesh}, None)
        return read_lock_answer(value, LockStatus, self._commands.origin)

    async def watch(self, resource: str, *, mesh: str | None = None) -> AsyncGenerator[LockStatus, None]:
        """Yield the state of a lock now, and again after each change of its holders.

        A caller that is slow gets the newest state, not every one. The watch ends with the iteration.
        """
        await self._connect()
        async with aclosing(self._commands.watches.states(resource, mesh or self._mesh)) as states:
            async for status in states:
                yield status

    async def list(self, *, mesh: str | None = None, limit: int | None = None, cursor: str | None = None) -> LockList:
        """Return a page of the locks of a mesh, or of every mesh that this node may read."""
        given = {"mesh": mesh, "limit": limit, "cursor": cursor}
        arguments = {name: value for name, value in given.items() if value is not None}
        return read_lock_answer(await self._request("list", arguments, None), LockList, self._commands.origin)

    async def _request(self, op: str, arguments: Mapping[str, Any], timeout_s: float | None) -> Any:
        await self._connect()
        return await self._commands.request(op, arguments, self._timeout_s if timeout_s is None else timeout_s)


def _holding(session: str | None, also: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that name a session and further resources, where they are given."""
    given: dict[str, Any] = {} if session is None else {"session": session}
    return given | {"also": list(also)} if also else given
