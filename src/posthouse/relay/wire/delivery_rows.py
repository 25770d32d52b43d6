"""Rows of deliveries as a store keeps them: states, dedupe records, pages, stored confirms. Values without rules.

If you change a field of StoredConfirm: 1. a migration of the rows that wait, 2. messages/consistency.py. If you
change a field of MessageRecord: 1. posthouse.journal.records, 2. the pipeline's replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from posthouse.model.message import DestinationKind, Message
from posthouse.model.message_api import NotQueued, State
from posthouse.model.pinch import is_confirmed_by_reader
from posthouse.relay.wire.frames import binary_frame

OPEN = frozenset({State.QUEUED, State.SENT})
#: the reason of a dead letter whose reader has provably read it
READ_UNCONFIRMED = "read_unconfirmed"
PARKED = frozenset({State.REJECTED, State.DEAD})
#: mesh, sender, the sender's agent, client_message_id
DedupeKey = tuple[str, str, str, str]
#: mesh, sender, recipient of a direct message, name of the destination
DeliveryRoute = tuple[str, str, str | None, str]


class MessageRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The body of a message's journal record; the last four fields are set when the message is committed."""

    size: int
    client_message_id: str
    fingerprint: str
    destination_kind: DestinationKind
    destination_ref: str
    mentions: tuple[str, ...] = ()
    reply_to: str | None = None
    from_agent: str = ""
    recipients: tuple[str, ...] | None = None
    blocked: tuple[str, ...] = ()
    not_queued: tuple[NotQueued, ...] = ()
    #: the recipients are successors of the key that the message names
    redirected: bool = False


class Addressed(msgspec.Struct, frozen=True, gc=False):
    """A message with everything that accepting it needs; made where the event is verified."""

    message: Message
    fingerprint: bytes
    key: DedupeKey
    #: messages with the same route go to the same readers
    route: DeliveryRoute
    record: MessageRecord


class KnownMessage(NamedTuple):
    """The dedupe record of an accepted message."""

    seq: int
    id: str
    fingerprint: bytes
    first_seen_at_ns: int
    is_history_available: bool


class KnownMessages(NamedTuple):
    """The dedupe records of some messages."""

    #: by the queue id of the sender, its agent and the client_message_id
    records: dict[tuple[int, str, str], KnownMessage]
    #: records of messages that were first seen up to this time may be deleted; 0 if none is
    swept_through_ns: int


class QueueDepth(NamedTuple):
    """A queue and how many of its deliveries are open."""

    queue_id: int
    open_rows: int


# Rows to write are plain tuples: a group has hundreds of them, and they go to the store as they are.
#: seq, queue id of the sender, its agent, client_message_id, fingerprint, topic, agent of the recipient,
#: first_seen_at_ns, expires_at_ns
NewDedupeRecord = tuple[int, int, str, str, bytes, str | None, str, int, int | None]
#: an open delivery of a message: seq, queue id, id, queue id of the sender, position, opened_at_ns
QueuedDelivery = tuple[int, int, bytes, int, int, int]
#: seq, queue id, source, id, queue id of the sender, position, state, opened_at_ns, closed_at_ns
NewDelivery = tuple[int, int, str, bytes, int, int, str, int, int | None]


class UnfinishedDelivery(NamedTuple):
    """An open or parked delivery of a reader, as it moves to the successor of the reader's key."""

    mesh: str
    id: str
    state: str
    sender: str
    #: "" for the host itself, as the next one
    from_agent: str
    to_agent: str


class DeliveryRow(NamedTuple):
    """A delivery that a confirmation or a rejection names."""

    id: str
    seq: int
    state: str
    was_stored: bool
    opened_at_ns: int
    #: queue id of the sender
    sender: int


class ReceiptRow(NamedTuple):
    """A delivery that a receipt names."""

    id: str
    seq: int
    state: str
    #: queue id of the sender
    sender: int
    is_topic: bool
    has_receipt: bool


class GapRow(NamedTuple):
    """Messages of a topic that a queue had no room for."""

    topic: str
    first_seq: int
    last_seq: int
    messages: int


#: queue id, topic, first seq, last seq, messages
NewGap = tuple[int, str, int, int, int]
#: seq, queue id, state, at_ms, reason
NewReceipt = tuple[int, int, str, int, str | None]


class ClosedDeliveries(NamedTuple):
    """Deliveries of one queue that were closed together."""

    mesh: str
    node: str
    seqs: list[int]
    #: their state now; "" if they had ended before
    state: str = ""

    @property
    def failure(self) -> str | None:
        """Their state if their reader did not confirm them."""
        return None if self.state in ("", State.CONFIRMED) else self.state


class AttemptBounds(NamedTuple):
    """How many connections may end before a delivery is parked."""

    #: because the reader made no progress
    timeouts: int
    #: for any other reason
    lost: int


NO_DELIVERIES = ClosedDeliveries("", "", [])


class SweptRecords(NamedTuple):
    """The position that a sweep of dedupe records reached."""

    #: the last of the records in front that are kept forever
    lasting_seq: int
    #: where to continue; None at a record that has not expired, or at the end
    through_seq: int | None


class DeliveryPage(NamedTuple):
    """The next deliveries of a queue, as the commands that carry them."""

    positions: list[int]
    seqs: list[int]
    #: DELIVER commands joined by commas, or the frames of the reader's wire
    text: bytes
    #: the body of the journal record that they were sent, as JSON
    record_body: str
    #: deliveries that readers do not confirm: they are closed once they were provably read
    needs_no_confirm: Sequence[int] = ()

    @property
    def size(self) -> int:
        """How many deliveries."""
        return len(self.seqs)


NO_PAGE = DeliveryPage([], [], b"", "{}")


class ConfirmationPage(NamedTuple):
    """The next confirmations for a sender, as CONFIRMED commands joined by commas."""

    size: int
    through_seq: int
    text: bytes


class MeshQueues(NamedTuple):
    """Figures over the queues of a mesh."""

    mesh: str
    open_rows: int
    parked_rows: int
    confirmation_ids: int
    #: when the oldest open delivery was opened
    oldest_ns: int | None


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """Figures over all queues."""

    meshes: Sequence[MeshQueues] = ()

    @property
    def open_rows(self) -> int:
        return sum([each.open_rows for each in self.meshes])

    @property
    def parked_rows(self) -> int:
        return sum([each.parked_rows for each in self.meshes])

    @property
    def confirmation_ids(self) -> int:
        return sum([each.confirmation_ids for each in self.meshes])

    @property
    def oldest_ns(self) -> int | None:
        """When the oldest open delivery was opened."""
        return min([each.oldest_ns for each in self.meshes if each.oldest_ns is not None], default=None)

    def deepest(self, count: int) -> list[MeshQueues]:
        """Return the meshes with the most open deliveries."""
        waiting = [each for each in self.meshes if each.open_rows]
        return sorted(waiting, key=lambda each: (-each.open_rows, each.mesh))[:count]

    def longest_waiting(self, count: int) -> list[tuple[str, int]]:
        """Return the meshes with the oldest open deliveries, and when these were opened."""
        waiting = [(each.mesh, each.oldest_ns) for each in self.meshes if each.oldest_ns is not None]
        return sorted(waiting, key=lambda each: (each[1], each[0]))[:count]


class PendingEnvelopes(NamedTuple):
    """The envelopes that wait for a Pinch address."""

    #: deliveries that will be sent
    deliveries: int
    #: deliveries that were read and not confirmed, so that they are not sent again
    read: int
    confirmations: int


_encode = msgspec.json.Encoder().encode


class StoredConfirm(msgspec.Struct, frozen=True):
    """A Pinch confirm that waits for its sender; JSON holds the envelope as base64."""

    #: of the delivery
    id: str
    was_stored: bool
    at_ns: int
    #: the envelope for the sender
    envelope: bytes


decode_stored_confirms = msgspec.json.Decoder(list[StoredConfirm]).decode


def encode_stored_confirm(confirm: StoredConfirm) -> str:
    """Return the JSON that the store keeps."""
    return _encode([confirm]).decode()


def envelope_page(rows: Sequence[Any]) -> DeliveryPage:
    """Return a page of Pinch frames; a row is (position, seq, id, was_stored, attempt, type, has_id, envelope)."""
    if not rows:
        return NO_PAGE
    positions, seqs, ids, was_stored, attempts, types, has_id, envelopes = zip(*rows, strict=True)
    body = {"ids": ids, "was_stored": [bool(stored) for stored in was_stored], "attempts": attempts}
    kinds = zip(seqs, types, has_id, strict=True)
    needs_no_confirm = [seq for seq, type_, has_one in kinds if not is_confirmed_by_reader(type_, has_one)]
    text = b"".join(map(binary_frame, envelopes))
    return DeliveryPage(list(positions), list(seqs), text, _encode(body).decode(), needs_no_confirm)


def confirmation_frames(rows: Sequence[Any], after_seq: int) -> ConfirmationPage:
    """Return Pinch confirms as frames; a row is (seq, items)."""
    frames = [binary_frame(each.envelope) for _seq, items in rows for each in decode_stored_confirms(items)]
    return ConfirmationPage(len(frames), rows[-1][0] if rows else after_seq, b"".join(frames))


# What operators see of messages, queues and deliveries: the names of the columns that a store reads, in order.
RECORD_FIELDS = (
    "seq", "mesh", "sender", "from_agent", "client_message_id", "destination_kind", "destination_ref",
    "first_seen_at_ns", "history_available",
)  # fmt: skip
STATE_FIELDS = (
    "recipient", "state", "was_stored", "attempts", "queued_at_ns", "sent_at_ns", "closed_at_ns", "reason",
    "receipt", "receipt_at_ms", "receipt_reason",
)  # fmt: skip
QUEUE_FIELDS = ("recipient", "depth", "parked", "confirmations", "oldest_ns", "in_flight")
DELIVERY_FIELDS = (
    "recipient", "sender", "id", "seq", "position", "state", "was_stored", "attempts", "timeouts", "flaps",
    "queued_at_ns", "sent_at_ns", "closed_at_ns", "reason",
)  # fmt: skip


def with_via(body: dict[str, Any], via: str | None) -> dict[str, Any]:
    """Return the body of an operator's record with the program through which the operator acted, if it is known."""
    return body if via is None else body | {"via": via}
