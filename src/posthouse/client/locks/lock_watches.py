"""Watches of locks: a caller sees the holders of a lock now, and again after each change.

A watcher gets the newest state, not every state, so a slow one costs no memory. All watchers of one name share one
watch of the relay, which ends with the last of them. After a reconnect the watch is sent again, and the relay shows the
state again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator

from posthouse.client.stream.frames import read_lock_answer, write_command
from posthouse.client.stream.pending import Answer, Kind, Pending, PendingCommands
from posthouse.model.errors import PosthouseError
from posthouse.model.lock_api import LockStatus

#: mesh and resource
_Key = tuple[str, str]


class _Watch(Pending):
    """The watch of one lock: the newest state, and the watchers that wait for the next one."""

    __slots__ = ("_origin", "answers", "state", "waiting", "watchers")

    def __init__(self, number: str, key: _Key, origin: str) -> None:
        super().__init__(Kind.LOCK_WATCH, number, _command(number, "watch", key))
        self._origin = origin
        self.watchers = 0
        #: how many states the relay has sent
        self.answers = 0
        #: None before the first answer; an error ended the watch
        self.state: LockStatus | PosthouseError | None = None
        self.waiting: set[asyncio.Future[None]] = set()

    def on_answer(self, answer: Answer) -> None:
        self.state = (
            answer if isinstance(answer, PosthouseError) else read_lock_answer(answer, LockStatus, self._origin)
        )
        self.answers += 1
        for each in self.waiting:
            if not each.done():
                each.set_result(None)

    async def next_state(self, seen: int) -> LockStatus:
        """Return the newest state once there is one after the first `seen` ones; raises what ended the watch."""
        if self.answers <= seen:
            change = asyncio.get_running_loop().create_future()
            self.waiting.add(change)
            try:
                await change
            finally:
                self.waiting.remove(change)
        if isinstance(self.state, PosthouseError):
            raise self.state
        assert self.state is not None
        return self.state


class LockWatches:
    """The watches of one client."""

    def __init__(self, commands: PendingCommands) -> None:
        self._commands = commands
        self._numbers = itertools.count(1)
        self._watches: dict[_Key, _Watch] = {}

    async def states(self, resource: str, mesh: str) -> AsyncGenerator[LockStatus, None]:
        """Yield the state of a lock now and after each change of its holders."""
        watch = self._enter((mesh, resource))
        seen = 0
        try:
            while True:
                state = await watch.next_state(seen)
                seen = watch.answers
                yield state
        finally:
            self._leave((mesh, resource), watch)

    def _enter(self, key: _Key) -> _Watch:
        watch = self._watches.get(key)
        if watch is None or isinstance(watch.state, PosthouseError):
            watch = self._watches[key] = _Watch(f"w{next(self._numbers)}", key, self._commands.link.origin)
            self._commands.add(watch)
        watch.watchers += 1
        return watch

    def _leave(self, key: _Key, watch: _Watch) -> None:
        watch.watchers -= 1
        if watch.watchers or self._watches.get(key) is not watch:
            return
        del self._watches[key]
        self._commands.discard(watch)
        if not isinstance(watch.state, PosthouseError):
            self._commands.link.send(_command(f"w{next(self._numbers)}", "unwatch", key))


def _command(number: str, op: str, key: _Key) -> bytes:
    return write_command("LOCK", number, op, {"resource": key[1], "mesh": key[0]})
