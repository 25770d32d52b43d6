"""What Pinch connections ask of the writer, and what became of it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from posthouse.relay.pinch.schema.pinch_pb2 import Envelope


class Outcome(enum.StrEnum):
    """What became of an envelope or a confirm."""

    ACCEPTED = "accepted"
    #: it was accepted before
    DUPLICATE = "duplicate"
    QUEUE_FULL = "queue_full"
    #: a confirm of nothing that could be confirmed
    IGNORED = "ignored"
    #: the store takes nothing now
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class Posting:
    """An envelope for another agent; whoever asks is told the outcome after the commit."""

    sender: str
    recipient: str
    message_id: bytes
    message_type: int
    #: as it came
    raw: bytes
    tell: Callable[[Outcome], None]

    @property
    def size(self) -> int:
        return len(self.raw)


@dataclass(frozen=True, slots=True)
class Confirming:
    """A confirm whose signature was verified."""

    reader: str
    sender: str
    envelope: Envelope
    tell: Callable[[Outcome], None]

    @property
    def size(self) -> int:
        return 512


Job = Posting | Confirming
