"""A lane: the way in of one connection. What was submitted first is accepted first.

Signatures are checked in parallel and out of order; a parcel leaves its lane only when all before it have left.
Answers come in groups, and may overtake each other. Closing a lane forgets who wanted the answers, not the events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from posthouse.relay.accept.job import Parcel
from posthouse.relay.answers import Answer

if TYPE_CHECKING:
    from posthouse.relay.accept.path import AcceptPath

OnAnswers = Callable[[Sequence[Answer]], None]


class Lane:
    """The order of one connection."""

    __slots__ = ("_answered", "_in_flight", "_on_answers", "_path", "_submitted", "parcels", "submitted")

    def __init__(self, path: AcceptPath, on_answers: OnAnswers) -> None:
        self._path = path
        self._on_answers: OnAnswers | None = on_answers
        self._in_flight = 0
        self._answered: list[Answer] = []
        self._submitted: list[str | None] = []
        #: ids of the events that the answers handed out now are for: the answer to a retry that was signed anew names
        #: the original
        self.submitted: list[str | None] = []
        #: not yet handed to the writer, oldest first
        self.parcels: deque[Parcel] = deque()

    def submit(self, events: Sequence[bytes]) -> None:
        """Take events as JSON, in order.

        Several are a list: after a refused one, later ones with the same destination get earlier_refused, and the
        list is written as one. Raises store_busy when too much waits.
        """
        parcel = Parcel([bytes(event) for event in events], self)
        self._in_flight += len(parcel.jobs)  # before it enters: a lone event may be answered at once
        try:
            self._path.enter(parcel)
        except BaseException:
            self._in_flight -= len(parcel.jobs)
            raise

    def in_flight(self) -> int:
        """Return how many events are not answered yet."""
        return self._in_flight

    def close(self) -> None:
        """Forget who wanted the answers; what was submitted is still accepted."""
        self._on_answers = None

    def note(self, event_id: str | None, answer: Answer) -> None:
        """Keep the answer to an event for the next `flush`; called by the path."""
        self._answered.append(answer)
        self._submitted.append(event_id)

    def flush(self) -> None:
        """Hand out the answers that were noted; called by the path."""
        answers, self._answered = self._answered, []
        self.submitted, self._submitted = self._submitted, []
        self._in_flight -= len(answers)
        if answers and self._on_answers is not None:
            self._on_answers(answers)
