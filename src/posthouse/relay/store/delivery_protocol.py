"""The protocols of deliveries, retired keys and Pinch envelopes: in a unit of work, and reads outside the writer.

The invariants of posthouse.relay.store.protocol hold here too. Counters change with the rows that they count; a
delivery has one outcome for each time it was opened; every change appends its journal record in the same unit. A
queue id is the number of a queue in the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from posthouse.relay.wire.delivery_rows import (
    AttemptBounds,
    ClosedDeliveries,
    ConfirmationPage,
    DeliveryPage,
    DeliveryRow,
    GapRow,
    KnownMessages,
    NewDedupeRecord,
    NewDelivery,
    NewGap,
    NewReceipt,
    PendingEnvelopes,
    QueuedDelivery,
    QueueDepth,
    QueueTotals,
    ReceiptRow,
    SweptRecords,
    UnfinishedDelivery,
)
from posthouse.relay.wire.mesh_rows import HeldKey, MeshRows, RetiredKey


class DeliveryUnit(Protocol):
    """Deliveries inside the writer's transaction."""

    def records(self, keys: Sequence[tuple[int, str, str]]) -> KnownMessages:
        """Return the dedupe records of these keys: the queue id of the sender, its agent and the client_message_id."""
        ...

    def audience_version(self, mesh: str) -> int | None:
        """Return a number that changes whenever members, access rows, topics, subscriptions or blocks of a mesh do."""
        ...

    def audience_rows(self, mesh: str) -> MeshRows:
        """Return one mesh with its members, access rows, topics, subscriptions and blocks."""
        ...

    def blockers(self, mesh: str, node: str) -> frozenset[str]:
        """Return the nodes that block a node."""
        ...

    def queues(self, mesh: str, nodes: Sequence[str]) -> dict[str, QueueDepth]:
        """Return the queues of these nodes that exist."""
        ...

    def grow(self, counts: Sequence[tuple[str, str, int]]) -> None:
        """Add to the counters of open deliveries, given as (mesh, node, count); create queues that are missing."""
        ...

    def open(
        self,
        records: Sequence[NewDedupeRecord],
        queued: Sequence[QueuedDelivery],
        deliveries: Sequence[NewDelivery],
        mentions: Sequence[tuple[str, int]],
    ) -> None:
        """Write the rows of accepted messages; the caller writes counters and journal. Most deliveries are `queued`."""
        ...

    def rows(self, queue_id: int, ids: Sequence[str]) -> list[DeliveryRow]:
        """Return the deliveries of a queue with these message ids."""
        ...

    def confirm(self, queue_id: int, seqs: Sequence[int], opened: int, parked: int) -> None:
        """Close deliveries as confirmed; the last two arguments say how many of them were open and parked."""
        ...

    def add_gaps(self, gaps: Sequence[NewGap]) -> None:
        """Note messages that had no room in a queue, in the order of their seq."""
        ...

    def close_gap(self, mesh: str, node: str, topic: str, through_seq: int) -> None:
        """Drop a gap up to a seq: its reader has the messages."""
        ...

    def receipt_rows(self, queue_id: int, ids: Sequence[str]) -> list[ReceiptRow]:
        """Return the deliveries of a queue with these message ids, and whether they have a receipt."""
        ...

    def add_receipts(self, receipts: Sequence[NewReceipt]) -> None:
        """Store the receipts of deliveries that have none yet."""
        ...

    def note_read(self, mesh: str, node: str, seqs: Sequence[int]) -> ClosedDeliveries:
        """Close open deliveries that need no confirm: their reader has provably read them."""
        ...

    def keep_confirmation(self, queue_id: int, seq: int, ids: int, items: str, reserve: int) -> None:
        """Keep a confirmation for its sender; beyond the reserve the oldest ones are dropped."""
        ...

    def drop_confirmations(self, mesh: str, node: str, through_seq: int) -> None:
        """Drop confirmations up to a seq: their sender has read them."""
        ...

    def mark_sent(self, mesh: str, node: str, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None:
        """Mark deliveries as sent; `was_stored` applies to those that were never sent before."""
        ...

    def reject(
        self, mesh: str, node: str, message_id: str, reason: str, before_ns: int
    ) -> tuple[str, ClosedDeliveries]:
        """Park an open delivery; return its state, "" if there is no such delivery."""
        ...

    def count_attempts(
        self, mesh: str, node: str, seqs: Sequence[int], bounds: AttemptBounds, *, is_timeout: bool
    ) -> ClosedDeliveries:
        """Count an attempt for deliveries and park those that reached their bound."""
        ...

    def expire(self, mesh: str, node: str, before_ns: int, limit: int) -> ClosedDeliveries:
        """Close deliveries that were opened before a time."""
        ...

    def block(self, mesh: str, node: str, sender: str) -> ClosedDeliveries:
        """Close the open deliveries of one sender; the sender does not notice."""
        ...

    def purge(
        self,
        mesh: str,
        node: str,
        actor: str,
        ids: Sequence[str] | None,
        states: Sequence[str],
        limit: int,
        via: str | None = None,
    ) -> tuple[list[str], ClosedDeliveries]:
        """Close deliveries for the operator, who acts through the program `via`; return the message ids."""
        ...

    def requeue(
        self,
        mesh: str,
        node: str,
        actor: str,
        ids: Sequence[str] | None,
        queue_max: int,
        limit: int,
        via: str | None = None,
    ) -> tuple[list[str], list[str]]:
        """Open parked deliveries again at the tail; return their ids, and the ids of those that had no room."""
        ...

    def sweep_records(self, after_seq: int, before_ns: int, limit: int) -> SweptRecords:
        """Read dedupe records in the order of their seq, up to the first that expires later.

        Delete the expired ones with their deliveries, unless one of these is open or parked.
        """
        ...


class SessionReads(Protocol):
    """The reads of a reader session, in the form of its wire."""

    async def page(
        self, mesh: str, node: str, after: int, opened_since_ns: int, now_ns: int, limit: int
    ) -> DeliveryPage:
        """Return the next open deliveries after a position, in order."""
        ...

    async def confirmations(self, mesh: str, node: str, after_seq: int, limit: int) -> ConfirmationPage:
        """Return the next confirmations for a sender."""
        ...


class KeyUnit(Protocol):
    """Retired keys and the rows that belong to keys, inside the writer's transaction; MeshTables implements it."""

    def save_retired_key(self, row: RetiredKey) -> None:
        """Retire a key; a revoked one may get a successor later."""
        ...

    def move_node(self, node: str, successor: str) -> None:
        """Give everything that belongs to a node in every mesh, its mailboxes included, to an unused node."""
        ...

    def save_held_key(self, row: HeldKey) -> None:
        """Let the new key of a member wait for approval."""
        ...

    def remove_held_key(self, mesh: str, node: str) -> None: ...

    def mailbox_meshes(self, node: str) -> list[str]:
        """Return the meshes in which a node has sent or received messages."""
        ...

    def unfinished_deliveries(self, node: str) -> list[UnfinishedDelivery]:
        """Return the deliveries of a reader that are open or parked."""
        ...

    def last_seq_before(self, at_ns: int) -> int:
        """Return the seq of the last record before a time."""
        ...


class DeliveryReads(SessionReads, Protocol):
    """Reads of deliveries outside the writer; each call sees one committed state."""

    async def waiting(self, mesh: str, node: str, opened_since_ns: int) -> int:
        """Return how many deliveries wait, without expired ones."""
        ...

    async def gaps(self, mesh: str, node: str, limit: int) -> list[GapRow]:
        """Return the gaps of a reader, the oldest first."""
        ...

    async def profiles(self, mesh: str, nodes: Sequence[str], now_ns: int) -> list[bytes]:
        """Return the profiles (kind 10002) that these nodes published in a mesh, as JSON."""
        ...

    async def due(self, before_ns: int, limit: int) -> list[tuple[str, str]]:
        """Return queues, as (mesh, node), whose oldest open delivery was opened before a time."""
        ...

    async def totals(self) -> QueueTotals:
        """Return figures over all queues."""
        ...

    async def message(self, message_id: str, only: str | None) -> dict[str, Any] | None:
        """Return the record of a message and its deliveries, or only that of one reader."""
        ...

    async def queues(self, mesh: str, after: str, limit: int) -> list[dict[str, Any]]:
        """Return the queues of a mesh that are not empty, ordered by node."""
        ...

    async def queue_rows(
        self, mesh: str, node: str | None, states: Sequence[str], after: tuple[int, str], limit: int
    ) -> list[dict[str, Any]]:
        """Return deliveries in these states, ordered by position."""
        ...


#: seq, id, queue id of the sender, message_id, message_type, accepted_at_ns, envelope
NewEnvelope = tuple[int, bytes, int, bytes, int, int, bytes]


class PinchUnit(Protocol):
    """Pinch envelopes inside the writer's transaction."""

    def is_known(self, sender: int, message_id: bytes, since_ns: int) -> bool:
        """Return True if a message id of a sender was accepted since a time."""
        ...

    def add(self, rows: Sequence[NewEnvelope]) -> None:
        """Write envelopes; the caller writes deliveries, counters and journal."""
        ...

    def find(self, reader: int, sender: int, message_id: bytes) -> DeliveryRow | None:
        """Return the latest delivery of a message id from one queue to another."""
        ...

    def sent_controls(self, reader: int, sender: int) -> list[int]:
        """Return the open deliveries that were sent to a reader, came from a sender and need no confirm."""
        ...

    def mark_read(self, mesh: str, node: str, seqs: Sequence[int]) -> None:
        """Mark messages that their reader has provably read: they are not sent again unless they are requeued."""
        ...

    def park_read(self, mesh: str, node: str) -> ClosedDeliveries:
        """Park open deliveries that were read and not confirmed."""
        ...

    def forget_attempts(self, mesh: str, node: str) -> None:
        """Count the attempts of open deliveries from zero again, because their reader makes progress."""
        ...

    def message_ids(self, seqs: Sequence[int]) -> list[bytes]:
        """Return the message ids of envelopes, in the order they were accepted."""
        ...

    def sweep(self, before_ns: int, limit: int) -> int:
        """Delete content of ended deliveries, and rows that ended before a time; return how many."""
        ...


class PinchReads(SessionReads, Protocol):
    """Reads of Pinch sessions; pages and confirmations come as frames that are ready for the wire."""

    async def pending(self, mesh: str, node: str, opened_since_ns: int) -> PendingEnvelopes:
        """Return how many envelopes wait for an address."""
        ...

    async def controls(self, mesh: str, node: str, opened_since_ns: int, limit: int) -> DeliveryPage:
        """Return the next envelopes that need no confirm and may overtake the messages that wait."""
        ...
