"""Pinch envelopes on PostgreSQL: inside a transaction (PinchUnit) and outside the writer (PinchReads).

Pages and confirmations come as frames that are ready for the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posthouse.model.pinch import is_confirmed_by_reader, overtaking_controls
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.postgresql.snapshot_reads import SnapshotReads
from posthouse.relay.store.delivery_protocol import NewEnvelope
from posthouse.relay.store.postgresql.pg_deliveries import PgDeliveries, insert_columns, with_text_ids
from posthouse.relay.store.postgresql.pg_delivery_reads import queue_id_of
from posthouse.relay.store.postgresql.pg_journal import SCHEMA, PgTransaction
from posthouse.relay.wire.delivery_rows import (
    NO_PAGE,
    READ_UNCONFIRMED,
    ClosedDeliveries,
    ConfirmationPage,
    DeliveryPage,
    DeliveryRow,
    PendingEnvelopes,
    confirmation_frames,
    envelope_page,
)
from posthouse.storage.sql_files import Statements

SQL = Statements(SCHEMA, "pinch.sql")


class PgPinch:
    """Implements posthouse.relay.store.delivery_protocol.PinchUnit."""

    def __init__(self, tx: PgTransaction, deliveries: PgDeliveries) -> None:
        self._tx = tx
        self._deliveries = deliveries

    @property
    def _db(self) -> ServerConnection:
        return self._tx.db

    def is_known(self, sender: int, message_id: bytes, since_ns: int) -> bool:
        return bool(self._db.value(SQL.find_known, message_id, sender, since_ns))

    def add(self, rows: Sequence[NewEnvelope]) -> None:
        insert_columns(self._db, SQL.insert_envelopes, rows)

    def find(self, reader: int, sender: int, message_id: bytes) -> DeliveryRow | None:
        found = self._db.row(SQL.find_delivery, reader, message_id, sender)
        return None if found is None else DeliveryRow(found[0].hex(), *found[1:])

    def sent_controls(self, reader: int, sender: int) -> list[int]:
        return self._seqs(SQL.sent_controls, reader, sender)

    def mark_read(self, mesh: str, node: str, seqs: Sequence[int]) -> None:
        self._db.queue(SQL.mark_read, mesh, node, list(seqs))

    def park_read(self, mesh: str, node: str) -> ClosedDeliveries:
        rows = with_text_ids(self._db.rows(SQL.read_rows, mesh, node))
        return self._deliveries.park(mesh, node, rows, READ_UNCONFIRMED)

    def forget_attempts(self, mesh: str, node: str) -> None:
        self._db.queue(SQL.forget_attempts, mesh, node)

    def message_ids(self, seqs: Sequence[int]) -> list[bytes]:
        return [message_id for (message_id,) in self._db.rows(SQL.message_ids, list(seqs))] if seqs else []

    def sweep(self, before_ns: int, limit: int) -> int:
        ended = self._seqs(SQL.emptiable, limit)
        if ended:
            self._db.queue(SQL.empty, ended)
        over = self._seqs(SQL.over, before_ns, limit)
        if over:
            self._db.queue(SQL.delete_deliveries, over)
            self._db.queue(SQL.delete_envelopes, over)
        return len(ended) + len(over)

    def _seqs(self, statement: str, *parameters: Any) -> list[int]:
        return [seq for (seq,) in self._db.rows(statement, *parameters)]


class PgPinchReads:
    """Implements posthouse.relay.store.delivery_protocol.PinchReads."""

    def __init__(self, reads: SnapshotReads) -> None:
        self._reads = reads

    async def page(
        self, mesh: str, node: str, after: int, opened_since_ns: int, now_ns: int, limit: int
    ) -> DeliveryPage:
        del now_ns  # envelopes carry no expiration
        return await self._reads.run(
            lambda db: _page(db.rows(SQL.page, queue_id_of(db, mesh, node), after, opened_since_ns, limit))
        )

    async def pending(self, mesh: str, node: str, opened_since_ns: int) -> PendingEnvelopes:
        def read(db: ServerConnection) -> PendingEnvelopes:
            return PendingEnvelopes(*db.rows(SQL.pending, queue_id_of(db, mesh, node), opened_since_ns)[0])

        return await self._reads.run(read)

    async def controls(self, mesh: str, node: str, opened_since_ns: int, limit: int) -> DeliveryPage:
        def read(db: ServerConnection) -> DeliveryPage:
            queue_id = queue_id_of(db, mesh, node)
            kinds = db.rows(SQL.open_kinds, queue_id, opened_since_ns)
            waiting = [(seq, sender, is_confirmed_by_reader(type_, has_id)) for seq, sender, type_, has_id in kinds]
            seqs = overtaking_controls(waiting)[:limit]
            return _page(db.rows(SQL.page_of_seqs, queue_id, seqs)) if seqs else NO_PAGE

        return await self._reads.run(read)

    async def confirmations(self, mesh: str, node: str, after_seq: int, limit: int) -> ConfirmationPage:
        def read(db: ServerConnection) -> ConfirmationPage:
            return confirmation_frames(
                db.rows(SQL.confirmation_page, queue_id_of(db, mesh, node), after_seq, limit), after_seq
            )

        return await self._reads.run(read)


def _page(rows: list[tuple[Any, ...]]) -> DeliveryPage:
    return envelope_page([(position, seq, id_.hex(), *rest) for position, seq, id_, *rest in rows])
