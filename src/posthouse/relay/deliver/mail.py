"""What one transaction did to deliveries, as the open mailboxes have to hear of it after the commit."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from posthouse.relay.deliver.rows import Closed


class Opening(msgspec.Struct, frozen=True, gc=False):
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
class Mail:
    """Everything one group of events did, in its order."""

    openings: list[Opening] = field(default_factory=list)
    confirmed: list[Confirmed] = field(default_factory=list)
    #: rows that were too old and made room
    closed: list[Closed] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.openings or self.confirmed or self.closed)
