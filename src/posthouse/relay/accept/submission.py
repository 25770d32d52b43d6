"""What travels along the accept path: submissions and their events, and the effects of a commit.

A Submitter is one connection's way in: what was submitted first is accepted first, although signatures are verified
in parallel. A submission leaves only when all before it have left. Closing a submitter drops the callback, not the
events. CommitEffects says what one transaction did to deliveries; reader sessions learn of it after the commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from posthouse.model.errors import PosthouseError
from posthouse.relay.store.event_rows import EventRow
from posthouse.relay.wire.accept_results import Answer
from posthouse.relay.wire.delivery_rows import ClosedDeliveries


class Job:
    """One event on its way."""

    __slots__ = ("charged", "event_id", "parcel", "raw", "refusal", "row")

    def __init__(self, raw: bytes, parcel: Submission) -> None:
        self.raw = raw
        self.parcel = parcel
        #: what the checks made of it; None until then, and for ever when it cannot be read
        self.row: EventRow | None = None
        #: the id it claims, once it was read
        self.event_id: str | None = None
        #: why it is refused, unless its id turns out to be known
        self.refusal: PosthouseError | None = None
        #: whether it was taken from the sender's rate
        self.charged = False


class Submission:
    """What one submission brought."""

    __slots__ = ("jobs", "lane", "unchecked")

    def __init__(self, events: list[bytes], lane: Submitter) -> None:
        self.lane = lane
        self.jobs = [Job(raw, self) for raw in events]
        #: jobs that are still with the checkers
        self.unchecked = len(self.jobs)

    @property
    def is_list(self) -> bool:
        """Whether a refusal holds back what comes after it."""
        return len(self.jobs) > 1


GROUP_EVENTS = 512  # keeps a transaction, and so the answers of everybody in it, in the low milliseconds
GROUPS_AHEAD = 2  # one commits, one waits: the writer never idles, and what comes meanwhile shares a group


def take_group(ready: list[Submission], most: int) -> tuple[list[Submission], list[Submission]]:
    """Return the first parcels with together at most `most` events, but at least one, and the rest."""
    count = 0
    for position, parcel in enumerate(ready):
        count += len(parcel.jobs)
        if count > most and position:
            return ready[:position], ready[position:]
    return ready, []


OnAnswers = Callable[[Sequence[Answer]], None]


class Submitter:
    """The order of one connection."""

    __slots__ = ("_answered", "_enter", "_in_flight", "_on_answers", "_submitted", "parcels", "submitted")

    def __init__(self, enter: Callable[[Submission], None], on_answers: OnAnswers) -> None:
        self._enter = enter
        self._on_answers: OnAnswers | None = on_answers
        self._in_flight = 0
        self._answered: list[Answer] = []
        self._submitted: list[str | None] = []
        #: ids of the events that the answers handed out now are for: the answer to a retry that was signed anew names
        #: the original
        self.submitted: list[str | None] = []
        #: not yet handed to the writer, oldest first
        self.parcels: deque[Submission] = deque()

    def submit(self, events: Sequence[bytes]) -> None:
        """Take events as JSON, in order.

        Several are a list: after a refused one, later ones with the same destination get earlier_refused, and the
        list is written as one. Raises store_busy when too much waits.
        """
        parcel = Submission([bytes(event) for event in events], self)
        self._in_flight += len(parcel.jobs)  # before it enters: a lone event may be answered at once
        try:
            self._enter(parcel)
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


class QueuedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that was queued for readers."""

    seq: int
    mesh: str
    id: str
    #: the event as JSON
    raw: bytes
    readers: tuple[str, ...]


class Confirmed(msgspec.Struct, frozen=True, gc=False):
    """Rows that their reader confirmed, and what their sender is told."""

    mesh: str
    reader: str
    sender: str
    seqs: tuple[int, ...]
    #: of the confirmation event
    seq: int
    #: the CONFIRMED command
    text: bytes


@dataclass
class CommitEffects:
    """Everything one group of events did, in its order."""

    openings: list[QueuedMessage] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    #: rows that were too old and made room
    closed: list[ClosedDeliveries] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.openings or self.confirmed or self.closed)
