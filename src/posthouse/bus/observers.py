"""Observers of dead letters: told of every one, whichever process made it.

Those of this process are told at once; those of others when the journal tells of them. A failing observer disturbs
nobody.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from posthouse.bus.dead_letters import read_letter
from posthouse.bus.log import get_log
from posthouse.bus.results import Letter

if TYPE_CHECKING:
    from posthouse.bus.session import Session

LetterObserver = Callable[[Letter], Awaitable[Any] | Any]
log = get_log(__name__)


class LetterObservers:
    """The dead-letter observers of one open Bus."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._observers: dict[int, LetterObserver] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._last = 0

    def add(self, observer: LetterObserver) -> Callable[[], None]:
        """Tell `observer` of every dead letter from now on; return what ends it."""
        self._last += 1
        ticket = self._last
        self._observers[ticket] = observer
        return lambda: _forget(self._observers, ticket)

    @property
    def is_watched(self) -> bool:
        return bool(self._observers)

    def written(self, hash_: str, id_: str) -> None:
        """Tell of a letter that lies in failed/."""
        if not self._observers:
            return
        letter = read_letter(self._session, hash_, id_)
        if letter is None:
            return
        for observer in list(self._observers.values()):
            task = self._session.loop.create_task(_tell(observer, letter), context=self._session.context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _tell(observer: LetterObserver, letter: Letter) -> None:
    try:
        answer = observer(letter)
        if inspect.isawaitable(answer):
            await answer
    except Exception as failure:  # noqa: BLE001 - an observer's fault is nobody else's
        log.warning("letter_observer_failed", id=letter.id, reason=repr(failure))


def _forget(observers: dict[int, LetterObserver], ticket: int) -> None:
    observers.pop(ticket, None)
