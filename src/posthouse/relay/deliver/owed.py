"""What open mailboxes owe to the store, written without anybody waiting for it, in order.

What one turn of the event loop owes is one unit of work, so that a message to a thousand open mailboxes is one unit and
not a thousand. What a store without room refuses is kept and tried again; more than a bound of it is let go, oldest
first, which costs a reader at most a count of attempts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import structlog

from posthouse.model.errors import PosthouseError, Transient
from posthouse.relay.store.interface import RelayStore, Unit

log = structlog.get_logger(__name__)

Name = tuple[str, str]
Then = Callable[[Any], None]
_KEPT = 10_000  # debts that wait for a store without room


class _Debt(NamedTuple):
    name: Name
    work: Callable[[Unit], Any]
    then: Then | None


class _Turn:
    """What one turn of the loop owes."""

    __slots__ = ("debts", "is_over")

    def __init__(self) -> None:
        self.debts: list[_Debt] = []
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Owed:
    """Writes that are on their way or wait for their retry."""

    def __init__(self, store: RelayStore) -> None:
        self._store = store
        self._turn: _Turn | None = None
        self._running: dict[Name, dict[_Turn, None]] = {}
        self._refused: deque[_Debt] = deque(maxlen=_KEPT)

    def write(self, name: Name, work: Callable[[Unit], Any], then: Then | None = None) -> None:
        """Have work done by the writer; `then` is called with its result after the commit."""
        turn = self._turn
        if turn is None:
            turn = self._turn = _Turn()
            asyncio.get_running_loop().call_soon(self._hand_over)
        turn.debts.append(_Debt(name, work, then))
        self._running.setdefault(name, {})[turn] = None

    async def settled(self, name: Name) -> None:
        """Wait until what is owed for a name is committed, or refused."""
        while turns := self._running.get(name):
            await asyncio.wait([turn.is_over for turn in turns])

    async def drain(self) -> None:
        """Wait until everything that is owed is committed, or refused."""
        while self._running:
            await asyncio.wait([turn.is_over for turns in self._running.values() for turn in turns])

    def retry(self) -> None:
        """Try again what was refused."""
        refused = list(self._refused)
        self._refused.clear()
        for debt in refused:
            self.write(*debt)

    def _hand_over(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        works = [debt.work for debt in turn.debts]
        try:
            future = self._store.submit(lambda unit: [work(unit) for work in works])
        except PosthouseError as failure:
            self._fail(turn, failure)
        else:
            future.add_done_callback(partial(self._written, turn))

    def _written(self, turn: _Turn, future: asyncio.Future[list[Any]]) -> None:
        failure = future.exception()
        if failure is not None:
            self._fail(turn, failure)
            return
        self._finish(turn)
        for debt, result in zip(turn.debts, future.result(), strict=True):
            if debt.then is not None:
                debt.then(result)

    def _fail(self, turn: _Turn, failure: BaseException) -> None:
        if isinstance(failure, Transient):
            self._refused.extend(turn.debts)
        elif isinstance(failure, PosthouseError):  # the store is closed or failed: nothing can be owed to it any more
            log.warning("deliveries_not_noted", reason=str(failure))
        else:
            log.error("deliveries_not_noted", reason=repr(failure), exc_info=failure)
        self._finish(turn)

    def _finish(self, turn: _Turn) -> None:
        for debt in turn.debts:
            turns = self._running.get(debt.name)
            if turns is not None:
                turns.pop(turn, None)
                if not turns:
                    del self._running[debt.name]
        turn.is_over.set_result(None)
