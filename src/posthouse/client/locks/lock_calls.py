"""Single operations on locks over the stream: acquire, renew, release, inspect, list.

For callers that keep token and deadline themselves; `Client.lock` holds a lock around a piece of work. After a
reconnect every unanswered operation is sent again; request ids and tokens make that safe. A wait that its caller
cancelled is abandoned: if the relay grants it all the same, the grant is released at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from posthouse.client.failures import error_from
from posthouse.client.stream.frames import text_of, value_of, write_command
from posthouse.model.api import LockGrant, LockList, LockStatus
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import LOCK_WAIT_MAX_MS, MILLISECOND_NS

T = TypeVar("T")


def read_lock_answer(value: Any, type: type[T], relay: str) -> T:  # noqa: A002 - the domain's word
    """Return an answer as its struct, or raise answer_invalid."""
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as fault:
        raise error("answer_invalid", relay=relay, reason=f"LOCKED is malformed: {fault}") from fault


_WANTED_MAX = 1_000
Arguments = Callable[[], Mapping[str, Any]]


class _LockRequest:
    __slots__ = ("answer", "arguments", "op")

    def __init__(self, op: str, arguments: Arguments, answer: asyncio.Future[Any]) -> None:
        self.op = op
        #: made anew for each sending: what is left of a wait shrinks
        self.arguments = arguments
        self.answer = answer


class LockCommands:
    """The open questions of a client about locks."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        origin: str,
        why_down: Callable[[], PosthouseError | None] = lambda: None,
    ) -> None:
        self._send = send
        self._why_down = why_down
        self.origin = origin
        self._numbers = itertools.count(1)
        self._asked: dict[str, _LockRequest] = {}
        self._failure: PosthouseError | None = None
        #: request ids whose grants were handed to a caller, the newest last
        self._wanted: dict[str, None] = {}

    async def ask(self, op: str, arguments: Arguments, timeout_s: float) -> Any:
        """Return the answer of an operation as plain values, or raise its refusal."""
        if self._failure is not None:
            raise self._failure
        req, asked = self._open(op, arguments)
        try:
            async with asyncio.timeout(timeout_s):
                return await asked.answer
        except TimeoutError as late:
            self._asked.pop(req, None)
            raise self._why_down() or error("answer_missing", seconds=timeout_s, id=f"LOCK {op}") from late
        except asyncio.CancelledError:
            if op != "acquire":  # else its answer is waited for, to give back what it may grant
                self._asked.pop(req, None)
            raise

    def give_back(self, resource: str, mesh: str, token: int) -> None:
        """Release a grant that nobody wants any more, without waiting for the answer."""
        back = {"resource": resource, "mesh": mesh, "token": token}
        self._send(write_command("LOCK", f"l{next(self._numbers)}", "release", back))

    def take_locked(self, arguments: Sequence[msgspec.Raw]) -> None:
        """Handle ["LOCKED", req, result or problem]."""
        asked = self._asked.pop(text_of(arguments[0]), None)
        if asked is None:
            return
        value = value_of(arguments[1])
        is_problem = isinstance(value, dict) and "code" in value
        if asked.answer.done():
            if not is_problem:
                self._return_unwanted(asked, value)
        elif is_problem:
            asked.answer.set_exception(error_from(value, self.origin))
        else:
            self._note_wanted(asked)
            asked.answer.set_result(value)

    def resume(self) -> None:
        """Ask everything unanswered again; the relay has forgotten the waits of the connection before."""
        for req, asked in list(self._asked.items()):
            if asked.answer.done():
                del self._asked[req]
            else:
                self._send(write_command("LOCK", req, asked.op, asked.arguments()))

    def fail(self, failure: PosthouseError) -> None:
        """End every question that is open."""
        self._failure = failure
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(failure)
        self._asked.clear()

    def _open(self, op: str, arguments: Arguments) -> tuple[str, _LockRequest]:
        req = f"l{next(self._numbers)}"
        asked = self._asked[req] = _LockRequest(op, arguments, asyncio.get_running_loop().create_future())
        self._send(write_command("LOCK", req, op, arguments()))
        return req, asked

    def _return_unwanted(self, asked: _LockRequest, grant: Any) -> None:
        """Release what was granted to a caller that has left, unless another one asked under the same request id."""
        wanted = asked.arguments()
        request_id = wanted.get("request_id")
        is_open = any(each.arguments().get("request_id") == request_id for each in self._asked.values())
        if request_id is None or not (is_open or request_id in self._wanted):
            self.give_back(wanted["resource"], wanted["mesh"], grant["token"])

    def _note_wanted(self, asked: _LockRequest) -> None:
        request_id = asked.arguments().get("request_id") if asked.op == "acquire" else None
        if request_id is not None:
            self._wanted[request_id] = None
            while len(self._wanted) > _WANTED_MAX:
                del self._wanted[next(iter(self._wanted))]


class LockCalls:
    """The operations on the locks of one relay."""

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
    ) -> LockGrant:
        """Acquire a lock, waiting up to `wait_ms`; raises held and the other refusals.

        The same `request_id` makes a retry safe: the grant is told again, not made twice.
        """
        end_ns = self._clock.boot_ns() + wait_ms * MILLISECOND_NS
        wanted: dict[str, Any] = {"resource": resource, "lease_ms": lease_ms, "mesh": mesh or self._mesh}
        if request_id is not None:
            wanted["request_id"] = request_id

        def arguments() -> Mapping[str, Any]:
            left_ms = max(0, (end_ns - self._clock.boot_ns()) // MILLISECOND_NS)
            return wanted | {"wait_ms": min(left_ms, LOCK_WAIT_MAX_MS)} if wait_ms else wanted

        await self._connect()
        value = await self._commands.ask("acquire", arguments, self._timeout_s + wait_ms / 1000)
        return read_lock_answer(value, LockGrant, self._commands.origin)

    async def renew(
        self, resource: str, token: int, *, lease_ms: int, mesh: str | None = None, timeout_s: float | None = None
    ) -> LockGrant:
        """Renew a lease that is active; it counts from now."""
        wanted = {"resource": resource, "token": token, "lease_ms": lease_ms, "mesh": mesh or self._mesh}
        return read_lock_answer(await self._ask("renew", wanted, timeout_s), LockGrant, self._commands.origin)

    async def release(
        self, resource: str, token: int, *, mesh: str | None = None, timeout_s: float | None = None
    ) -> None:
        """Give a lock back."""
        await self._ask("release", {"resource": resource, "token": token, "mesh": mesh or self._mesh}, timeout_s)

    def give_back(self, resource: str, token: int, *, mesh: str | None = None) -> None:
        """Release a lock without waiting for the answer; the lease ends by itself if this does not get through."""
        self._commands.give_back(resource, mesh or self._mesh, token)

    async def inspect(self, resource: str, *, mesh: str | None = None) -> LockStatus:
        """Tell who holds a lock."""
        value = await self._ask("inspect", {"resource": resource, "mesh": mesh or self._mesh}, None)
        return read_lock_answer(value, LockStatus, self._commands.origin)

    async def list(self, *, mesh: str | None = None, limit: int | None = None, cursor: str | None = None) -> LockList:
        """Return part of the locks of a mesh, or of all that this node may read."""
        given = {"mesh": mesh, "limit": limit, "cursor": cursor}
        wanted = {name: value for name, value in given.items() if value is not None}
        return read_lock_answer(await self._ask("list", wanted, None), LockList, self._commands.origin)

    async def _ask(self, op: str, wanted: Mapping[str, Any], timeout_s: float | None) -> Any:
        await self._connect()
        return await self._commands.ask(op, lambda: wanted, self._timeout_s if timeout_s is None else timeout_s)
