"""LOCK on the stream: sends commands, and sorts answers to those who asked.

After a reconnect everything unanswered is asked again; request ids and tokens make that safe. A wait that its
caller gave up is given up here too: should the relay grant it all the same, the grant is given back at once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from posthouse.client.problems import error_from
from posthouse.client.stream.commands import text_of, value_of, write_command
from posthouse.model.errors import PosthouseError, error

_WANTED_MAX = 1_000
Arguments = Callable[[], Mapping[str, Any]]


class _Asked:
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
        self._asked: dict[str, _Asked] = {}
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

    def _open(self, op: str, arguments: Arguments) -> tuple[str, _Asked]:
        req = f"l{next(self._numbers)}"
        asked = self._asked[req] = _Asked(op, arguments, asyncio.get_running_loop().create_future())
        self._send(write_command("LOCK", req, op, arguments()))
        return req, asked

    def _return_unwanted(self, asked: _Asked, grant: Any) -> None:
        """Release what was granted to a caller that has left, unless another one asked under the same request id."""
        wanted = asked.arguments()
        request_id = wanted.get("request_id")
        is_open = any(each.arguments().get("request_id") == request_id for each in self._asked.values())
        if request_id is None or not (is_open or request_id in self._wanted):
            self.give_back(wanted["resource"], wanted["mesh"], grant["token"])

    def _note_wanted(self, asked: _Asked) -> None:
        request_id = asked.arguments().get("request_id") if asked.op == "acquire" else None
        if request_id is not None:
            self._wanted[request_id] = None
            while len(self._wanted) > _WANTED_MAX:
                del self._wanted[next(iter(self._wanted))]
