"""Rows of the Pinch wire and what a store does with them; deliveries and counters are those of every message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from posthouse.relay.deliver.interface import MailboxReads
from posthouse.relay.deliver.rows import Row

#: seq, id, the sender's mailbox, message_id, message_type, accepted_at_ns, envelope
NewEnvelope = tuple[int, bytes, int, bytes, int, int, bytes]


class PinchUnit(Protocol):
    """Pinch envelopes inside the writer's transaction."""

    def is_known(self, sender: int, message_id: bytes, since_ns: int) -> bool:
        """Tell whether a sender's message id was accepted since a time."""
        ...

    def add(self, rows: Sequence[NewEnvelope]) -> None:
        """Write envelopes; deliveries, counters and the journal are the caller's."""
        ...

    def find(self, reader: int, sender: int, message_id: bytes) -> Row | None:
        """Return the latest delivery of a message id from one mailbox to another."""
        ...

    def message_ids(self, seqs: Sequence[int]) -> list[bytes]:
        """Return the message ids of envelopes, in the order they were accepted."""
        ...

    def sweep(self, before_ns: int, limit: int) -> int:
        """Take content away that nobody will read, and rows that ended before a time; return how many."""
        ...


#: Pages and confirmations come as frames that are ready for the wire.
PinchReads = MailboxReads
