"""Rows of deliveries as a store keeps them: states, dedupe records, pages, stored confirms. Values without rules.

If you change a field of StoredConfirm: 1. a migration of the rows that wait, 2. messages/consistency.py.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from posthouse.model.message import Message


class State(enum.StrEnum):
    """How far a message has come to one reader."""

    QUEUED = "queued"
    SENT = "sent"
    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    DEAD = "dead"
    EXPIRED = "expired"
    PURGED = "purged"
    BLOCKED = "blocked"


OPEN = frozenset({State.QUEUED, State.SENT})
PARKED = frozenset({State.REJECTED, State.DEAD})
#: mesh, sender, client_message_id
DedupeKey = tuple[str, str, str]
#: mesh, sender, recipient of a direct message, name of the destination
DeliveryRoute = tuple[str, str, str | None, str]


class Addressed(msgspec.Struct, frozen=True, gc=False):
    """A message and what tells a retry of it from another one; worked out where the event is checked."""

    message: Message
    fingerprint: bytes
    key: DedupeKey
    #: messages with the same one go to the same readers
    way: DeliveryRoute


class KnownMessage(NamedTuple):
    """The record of an accepted message."""

    seq: int
    id: str
    fingerprint: bytes
    first_seen_at_ns: int
    is_history_available: bool


class KnownMessages(NamedTuple):
    """What records know of some messages."""

    #: by the number of the sender's mailbox and the client_message_id
    records: dict[tuple[int, str], KnownMessage]
    #: messages that were first seen up to here may have no record any more; 0 when all have theirs
    swept_through_ns: int


class QueueDepth(NamedTuple):
    """A mailbox row: its number and how many unconfirmed rows it has."""

    mailbox: int
    open_rows: int


# Rows to be written are plain tuples: there are many of them, and they go to the store as they are.
#: seq, the sender's mailbox, client_message_id, fingerprint, topic, first_seen_at_ns, expires_at_ns
NewDedupeRecord = tuple[int, int, str, bytes, str | None, int, int | None]
#: of a message for its reader: seq, mailbox, id, the sender's mailbox, position, opened_at_ns
QueuedDelivery = tuple[int, int, bytes, int, int, int]
#: seq, mailbox, source, id, the sender's mailbox, position, state, opened_at_ns, closed_at_ns
NewDelivery = tuple[int, int, str, bytes, int, int, str, int, int | None]


class DeliveryRow(NamedTuple):
    """What a confirmation or a reader's refusal finds under an id."""

    id: str
    seq: int
    state: str
    was_stored: bool
    opened_at_ns: int
    #: number of the sender's mailbox
    sender: int


class ClosedDeliveries(NamedTuple):
    """Rows of one mailbox that were closed together."""

    mesh: str
    node: str
    seqs: list[int]
    #: what they are now; "" when they had ended before
    state: str = ""


NO_DELIVERIES = ClosedDeliveries("", "", [])


class SweptRecords(NamedTuple):
    """What became of the next records, in their order."""

    #: the last of those in front that are kept for ever
    lasting_seq: int
    #: where to go on; None when one came that is not over, or the end
    through_seq: int | None


class DeliveryPage(NamedTuple):
    """The next rows of a mailbox, as the commands that carry them."""

    positions: list[int]
    seqs: list[int]
    #: DELIVER commands, joined by commas, or whatever the reader's wire has for them
    text: bytes
    #: the body of the record that they were sent, as JSON
    record_body: str
    #: rows among them that nobody confirms: they leave once they were provably read
    leaving: Sequence[int] = ()

    @property
    def size(self) -> int:
        """How many rows."""
        return len(self.seqs)


class ConfirmationPage(NamedTuple):
    """The next confirmations for a sender, as CONFIRMED commands joined by commas."""

    size: int
    through_seq: int
    text: bytes


class QueueTotals(NamedTuple):
    """Figures over all mailboxes."""

    open_rows: int
    parked_rows: int
    confirmation_ids: int
    #: when the oldest open row was opened
    oldest_ns: int | None


_encode = msgspec.json.Encoder().encode


class StoredConfirm(msgspec.Struct, frozen=True):
    """One confirm; the envelope stands as base64 in the text."""

    #: that of the delivery
    id: str
    was_stored: bool
    at_ns: int
    #: as it goes to the sender
    envelope: bytes


decode_stored_confirms = msgspec.json.Decoder(list[StoredConfirm]).decode


def encode_stored_confirm(told: StoredConfirm) -> str:
    """Return the text that waits."""
    return _encode([told]).decode()
