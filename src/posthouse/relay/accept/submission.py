"""Submissions to the store: the events of one call, and the order of one connection.

A Submitter is a connection's entry to the accept path. Its submissions are accepted in order, although signatures
may be verified in parallel: a submission leaves only when all before it have left. Closing a submitter drops its
callback, not its events. CommitEffects lists what one transaction did to deliveries; reader sessions get it after
the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from posthouse.model.errors import PosthouseError
from posthouse.model.event import Event
from posthouse.relay.store.event_rows import EventRow
from posthouse.relay.wire.accept_results import Answer
from posthouse.relay.wire.delivery_rows import ClosedDeliveries


class Job:
    """One event on the accept path."""

    __slots__ = ("event_id", "is_charged", "raw", "refusal", "row", "submission")

    def __init__(self, raw: bytes, submission: Submission) -> None:
        self.raw = raw
        self.submission = submission
        #: set when the event is verified; stays None if it cannot be read or its signature is wrong
        self.row: EventRow | None = None
        #: the id that the event claims, once it was parsed
        self.event_id: str | None = None
        #: why the event is refused, unless its id turns out to be known
        self.refusal: PosthouseError | None = None
        #: whether the sender's rate was charged for it
        self.is_charged = False


class Submission:
    """The events of one `submit`."""

    __slots__ = ("authorized_at", "entered_ns", "jobs", "size", "submitter", "unverified")

    def __init__(self, events: Sequence[bytes], submitter: Submitter) -> None:
        self.submitter = submitter
        self.jobs = [Job(bytes(raw), self) for raw in events]
        #: bytes of JSON
        self.size = sum([len(job.raw) for job in self.jobs])
        #: seq of the last mesh change by another relay that the check of rights took into account
        self.authorized_at = 0
        #: when it entered the accept path, if events are traced; else 0
        self.entered_ns = 0
        #: how many jobs are not verified yet
        self.unverified = len(self.jobs)

    @property
    def is_fenced(self) -> bool:
        """Whether a lock decides about one of its events; known once all are verified."""
        return self.submitter.mirrored_by is None and any(
            job.row is not None and job.row.fence is not None for job in self.jobs
        )

    @property
    def is_list(self) -> bool:
        """Whether a refused event blocks later events with the same destination."""
        return len(self.jobs) > 1


class Answered(NamedTuple):
    """The answer to a submitted event."""

    #: the id that was submitted: the answer to a retry with a new signature names the original
    event_id: str | None
    answer: Answer


#: Called on the event loop with the answers that one commit brought, in the order of submission.
OnAnswers = Callable[[Sequence[Answered]], None]


class Submitter:
    """The order of one connection."""

    __slots__ = ("_enter", "in_flight", "is_forwarding", "mirrored_by", "on_answers", "payer", "right_error", "waiting")

    def __init__(
        self,
        enter: Callable[[Submission], None],
        on_answers: OnAnswers,
        right_error: Callable[[Event, str], PosthouseError | None] = lambda _event, _mesh: None,
        payer: str | None = None,
        mirrored_by: str | None = None,
    ) -> None:
        self._enter = enter
        #: the mirror that brings these events from another relay; None if their authors sent them
        self.mirrored_by = mirrored_by
        #: returns why the author that an event claims may not write to its mesh; called before the signature is known
        self.right_error = right_error
        #: the node or address whose rate is charged for events without rights; None: nothing is charged
        self.payer = payer
        #: None once the connection is closed
        self.on_answers: OnAnswers | None = on_answers
        #: how many events have no answer yet
        self.in_flight = 0
        #: whether another relay decides about a submission; later ones wait for its answer
        self.is_forwarding = False
        #: submissions that are not handed to the writer yet, oldest first
        self.waiting: list[Submission] = []

    def submit(self, events: Sequence[bytes]) -> None:
        """Submit events as JSON, in order.

        Several events are a list: after a refused one, later ones with the same destination get earlier_refused, and
        the list is written in one transaction. Raises store_busy when too much waits.
        """
        submission = Submission(events, self)
        self.in_flight += len(submission.jobs)  # before it enters: the path may answer a lone event at once
        try:
            self._enter(submission)
        except BaseException:
            self.in_flight -= len(submission.jobs)
            raise

    def close(self) -> None:
        """Drop the callback; submitted events are still accepted."""
        self.on_answers = None


class QueuedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that was queued for readers."""

    seq: int
    mesh: str
    id: str
    #: the event as JSON
    raw: bytes
    readers: tuple[str, ...]


class Confirmed(msgspec.Struct, frozen=True, gc=False):
    """Deliveries that their reader confirmed, and the command for their sender."""

    mesh: str
    reader: str
    sender: str
    seqs: tuple[int, ...]
    #: of the confirmation event
    seq: int
    #: the CONFIRMED command, or the frame that the sender's wire has for it
    text: bytes


@dataclass(slots=True)
class CommitEffects:
    """What one transaction did to deliveries, in its order."""

    queued: list[QueuedMessage] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    #: deliveries that expired to make room, or that a confirmation named although they had ended
    closed: list[ClosedDeliveries] = field(default_factory=list)
    #: mesh and node of readers whose queue had no room for a message of a topic
    gaps: set[tuple[str, str]] = field(default_factory=set)
    #: profiles that replaced others
    profiles: list[Event] = field(default_factory=list)
