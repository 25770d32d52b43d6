"""The protocols of deliveries and Pinch envelopes: their part of a unit of work, and reads beside the writer.

The invariants of posthouse.relay.store.protocol hold here too. Counters change with the rows they count; a delivery
has one outcome for each time it was opened; every change appends its record to the journal in the same unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from posthouse.relay.wire.delivery_rows import (
    ClosedDeliveries,
    ConfirmationPage,
    DeliveryPage,
    DeliveryRow,
    KnownMessages,
    NewDedupeRecord,
    NewDelivery,
    QueuedDelivery,
    QueueDepth,
    QueueTotals,
    SweptRecords,
)
from posthouse.relay.wire.mesh_rows import MeshRows


class DeliveryUnit(Protocol):
    """Deliveries inside the writer's transaction."""

    def records(self, keys: Sequence[tuple[int, str]]) -> KnownMessages:
        """Return the records under these keys: the number of the sender's mailbox and the client_message_id."""
        ...

    def audience_version(self, mesh: str) -> int | None:
        """Return what changes whenever members, access, topics, subscriptions or blocks of a mesh do."""
        ...

    def audience_rows(self, mesh: str) -> MeshRows:
        """Return one mesh with its members, access rows, topics, subscriptions and blocks."""
        ...

    def blockers(self, mesh: str, node: str) -> frozenset[str]:
        """Return who blocks a node."""
        ...

    def boxes(self, mesh: str, nodes: Sequence[str]) -> dict[str, QueueDepth]:
        """Return the mailboxes of these nodes that exist."""
        ...

    def grow(self, counts: Sequence[tuple[str, str, int]]) -> None:
        """Add open rows to mailboxes, given as (mesh, node, rows); make those that are missing."""
        ...

    def open(
        self,
        records: Sequence[NewDedupeRecord],
        queued: Sequence[QueuedDelivery],
        deliveries: Sequence[NewDelivery],
        mentions: Sequence[tuple[str, int]],
    ) -> None:
        """Write the rows of accepted messages, `queued` for the usual ones; counters and journal are the caller's."""
        ...

    def rows(self, mailbox: int, ids: Sequence[str]) -> list[DeliveryRow]:
        """Return the rows of a reader under these message ids."""
        ...

    def confirm(self, mailbox: int, seqs: Sequence[int], opened: int, parked: int) -> None:
        """Close rows as confirmed, of which so many were open and so many parked."""
        ...

    def note_read(self, mesh: str, node: str, seqs: Sequence[int]) -> ClosedDeliveries:
        """Close open rows as confirmed that nobody confirms: their reader has provably read them."""
        ...

    def tell_sender(self, mailbox: int, seq: int, ids: int, items: str, reserve: int) -> None:
        """Keep a confirmation for its sender; beyond the reserve the oldest ones go."""
        ...

    def forget_told(self, mesh: str, node: str, through_seq: int) -> None:
        """Drop the confirmations up to a seq: the sender has read them."""
        ...

    def mark_sent(self, mesh: str, node: str, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None:
        """Note that rows were sent; those that were never sent before learn whether they came from the queue."""
        ...

    def reject(
        self, mesh: str, node: str, message_id: str, reason: str, before_ns: int
    ) -> tuple[str, ClosedDeliveries]:
        """Park an open row; return the state it has now, "" when there is no such row."""
        ...

    def count_attempts(self, mesh: str, node: str, seqs: Sequence[int], *, is_timeout: bool) -> ClosedDeliveries:
        """Count an attempt for rows and park those that reached their bound."""
        ...

    def expire(self, mesh: str, node: str, before_ns: int, limit: int) -> ClosedDeliveries:
        """Close rows that were opened before a time."""
        ...

    def block(self, mesh: str, node: str, sender: str) -> ClosedDeliveries:
        """Close the open rows of one sender silently."""
        ...

    def purge(
        self, mesh: str, node: str, actor: str, ids: Sequence[str] | None, states: Sequence[str], limit: int
    ) -> tuple[list[str], ClosedDeliveries]:
        """Close rows for the operator; return the message ids."""
        ...

    def requeue(
        self, mesh: str, node: str, actor: str, ids: Sequence[str] | None, queue_max: int, limit: int
    ) -> tuple[list[str], list[str]]:
        """Open parked rows again at the tail; return the ids of those, and of those that had no room."""
        ...

    def sweep_records(self, after_seq: int, before_ns: int, limit: int) -> SweptRecords:
        """Look at so many records in the order of their seq, up to the first that ends later.

        Delete those that are over, with their deliveries, unless one of these is open or parked.
        """
        ...


class SessionReads(Protocol):
    """What an open mailbox reads, as its reader's wire wants it."""

    async def page(
        self, mesh: str, node: str, after: int, opened_since_ns: int, now_ns: int, limit: int
    ) -> DeliveryPage:
        """Return the next open rows behind a position, in order."""
        ...

    async def confirmations(self, mesh: str, node: str, after_seq: int, limit: int) -> ConfirmationPage:
        """Return the next confirmations for a sender."""
        ...


class DeliveryReads(SessionReads, Protocol):
    """Deliveries beside the writer; each call sees one committed state."""

    async def waiting(self, mesh: str, node: str, opened_since_ns: int) -> int:
        """Return how many rows wait, those too old left out."""
        ...

    async def profiles(self, mesh: str, nodes: Sequence[str], now_ns: int) -> list[bytes]:
        """Return the profiles (kind 10002) these nodes published in a mesh, as JSON."""
        ...

    async def due(self, before_ns: int, limit: int) -> list[tuple[str, str]]:
        """Return mailboxes, as (mesh, node), whose oldest row was opened before a time."""
        ...

    async def totals(self) -> QueueTotals:
        """Return figures over all mailboxes."""
        ...

    async def message(self, message_id: str, only: str | None) -> dict[str, Any] | None:
        """Return the record of a message and its states, of one reader only if named."""
        ...

    async def queues(self, mesh: str, after: str, limit: int) -> list[dict[str, Any]]:
        """Return the mailboxes of a mesh in which something is, in the order of nodes."""
        ...

    async def queue_rows(
        self, mesh: str, node: str | None, states: Sequence[str], after: tuple[int, str], limit: int
    ) -> list[dict[str, Any]]:
        """Return rows in these states, in the order of their positions."""
        ...


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

    def find(self, reader: int, sender: int, message_id: bytes) -> DeliveryRow | None:
        """Return the latest delivery of a message id from one mailbox to another."""
        ...

    def message_ids(self, seqs: Sequence[int]) -> list[bytes]:
        """Return the message ids of envelopes, in the order they were accepted."""
        ...

    def sweep(self, before_ns: int, limit: int) -> int:
        """Take content away that nobody will read, and rows that ended before a time; return how many."""
        ...


#: Pages and confirmations come as frames that are ready for the wire.
PinchReads = SessionReads
