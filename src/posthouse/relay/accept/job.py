"""What travels along the accept path: jobs, one per event, in parcels, one per submission.

A job gathers what the stages find out; nobody but the path touches it. A parcel keeps its events together and in order
from the connection to the transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.model.errors import PosthouseError
from posthouse.relay.store.interface import EventRow

if TYPE_CHECKING:
    from posthouse.relay.accept.lane import Lane


class Job:
    """One event on its way."""

    __slots__ = ("charged", "event_id", "parcel", "raw", "refusal", "row")

    def __init__(self, raw: bytes, parcel: Parcel) -> None:
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


class Parcel:
    """What one submission brought."""

    __slots__ = ("jobs", "lane", "unchecked")

    def __init__(self, events: list[bytes], lane: Lane) -> None:
        self.lane = lane
        self.jobs = [Job(raw, self) for raw in events]
        #: jobs that are still with the checkers
        self.unchecked = len(self.jobs)

    @property
    def is_list(self) -> bool:
        """Whether a refusal holds back what comes after it."""
        return len(self.jobs) > 1
