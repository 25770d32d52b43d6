"""Pinch envelopes on SQLite: inside a transaction (PinchUnit) and outside the writer (PinchReads).

Pages and confirmations come as frames that are ready for the wire.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.model.pinch import is_confirmed_by_reader, overtaking_controls
from posthouse.relay.store.delivery_protocol import NewEnvelope
from posthouse.relay.store.sqlite.deliveries import SqliteDeliveries
from posthouse.relay.wire.delivery_rows import (
    READ_UNCONFIRMED,
    ClosedDeliveries,
    ConfirmationPage,
    DeliveryPage,
    DeliveryRow,
    PendingEnvelopes,
    confirmation_frames,
    envelope_page,
)
from posthouse.sqlite.read_pool import ReadPool
from posthouse.sqlite.transaction import BulkInsert
from posthouse.storage.sql_files import Component, Statements

_PINCH_SCHEMA = "posthouse.relay.store.sqlite.schema.pinch"
PINCH = Component("pinch", _PINCH_SCHEMA)
PINCH_SQL = Statements(_PINCH_SCHEMA, "pinch.sql")
_ENVELOPES = BulkInsert(PINCH_SQL.insert_envelopes, 7)


class SqlitePinch:
    """Implements posthouse.relay.store.delivery_protocol.PinchUnit."""

    def __init__(self, tx: JournalTransaction, deliveries: SqliteDeliveries) -> None:
        self._db = tx.db
        self._deliveries = deliveries

    def is_known(self, sender: int, message_id: bytes, since_ns: int) -> bool:
        return bool(self._db.execute(PINCH_SQL.find_known, (message_id, sender, since_ns)).get)

    def add(self, rows: Sequence[NewEnvelope]) -> None:
        _ENVELOPES.run(self._db, rows)

    def find(self, reader: int, sender: int, message_id: bytes) -> DeliveryRow | None:
        found: Any = self._db.execute(PINCH_SQL.find_delivery, (reader, message_id, sender)).fetchone()
        if found is None:
            return None
        id_, seq, state, was_stored, opened_at_ns, from_ = found
        return DeliveryRow(id_, seq, state, bool(was_stored), opened_at_ns, from_)

    def sent_controls(self, reader: int, sender: int) -> list[int]:
        return self._seqs(PINCH_SQL.sent_controls, (reader, sender))

    def mark_read(self, mesh: str, node: str, seqs: Sequence[int]) -> None:
        self._db.execute(PINCH_SQL.mark_read, (mesh, node, _ints(seqs)))

    def park_read(self, mesh: str, node: str) -> ClosedDeliveries:
        rows: list[Any] = self._db.execute(PINCH_SQL.read_rows, (mesh, node)).fetchall()
        return self._deliveries.park(mesh, node, rows, READ_UNCONFIRMED)

    def forget_attempts(self, mesh: str, node: str) -> None:
        self._db.execute(PINCH_SQL.forget_attempts, (mesh, node))

    def message_ids(self, seqs: Sequence[int]) -> list[bytes]:
        if not seqs:
            return []
        return [message_id for (message_id,) in self._db.execute(PINCH_SQL.message_ids, (_ints(seqs),))]

    def sweep(self, before_ns: int, limit: int) -> int:
        ended = self._seqs(PINCH_SQL.emptiable, (limit,))
        if ended:
            self._db.execute(PINCH_SQL.empty, (_ints(ended),))
        over = self._seqs(PINCH_SQL.over, (before_ns, limit))
        if over:
            self._db.execute(PINCH_SQL.delete_deliveries, (_ints(over),))
            self._db.execute(PINCH_SQL.delete_envelopes, (_ints(over),))
        return len(ended) + len(over)

    def _seqs(self, statement: str, bindings: tuple[Any, ...]) -> list[int]:
        return [seq for (seq,) in self._db.execute(statement, bindings)]


def _ints(values: Sequence[int]) -> Any:
    """Return integers as a value that a statement reads as a table."""
    return apsw.carray(array("q", values))


class SqlitePinchReads:
    """Implements posthouse.relay.store.delivery_protocol.PinchReads for Pinch addresses."""

    def __init__(self, pool: ReadPool) -> None:
        self._pool = pool

    async def page(
        self, mesh: str, node: str, after: int, opened_since_ns: int, now_ns: int, limit: int
    ) -> DeliveryPage:
        def read(db: apsw.Connection) -> DeliveryPage:
            bindings = (_queue_id(db, mesh, node), after, opened_since_ns, limit)
            rows: list[Any] = db.execute(PINCH_SQL.page, bindings).fetchall()
            return envelope_page(rows)

        return await self._pool.run(read)

    async def pending(self, mesh: str, node: str, opened_since_ns: int) -> PendingEnvelopes:
        def read(db: apsw.Connection) -> PendingEnvelopes:
            queue_id = _queue_id(db, mesh, node)
            counts: Any = db.execute(PINCH_SQL.pending, (queue_id, opened_since_ns)).fetchone()
            deliveries, read_ones = counts
            return PendingEnvelopes(deliveries, read_ones, db.execute(PINCH_SQL.pending_confirmations, (queue_id,)).get)

        return await self._pool.run(read)

    async def controls(self, mesh: str, node: str, opened_since_ns: int, limit: int) -> DeliveryPage:
        def read(db: apsw.Connection) -> DeliveryPage:
            queue_id = _queue_id(db, mesh, node)
            kinds = db.execute(PINCH_SQL.open_kinds, (queue_id, opened_since_ns))
            waiting = [(seq, sender, is_confirmed_by_reader(type_, has_id)) for seq, sender, type_, has_id in kinds]
            seqs = overtaking_controls(waiting)[:limit]
            rows: list[Any] = db.execute(PINCH_SQL.page_of_seqs, (queue_id, _ints(seqs))).fetchall() if seqs else []
            return envelope_page(rows)

        return await self._pool.run(read)

    async def confirmations(self, mesh: str, node: str, after_seq: int, limit: int) -> ConfirmationPage:
        def read(db: apsw.Connection) -> ConfirmationPage:
            bindings = (_queue_id(db, mesh, node), after_seq, limit)
            rows: list[Any] = db.execute(PINCH_SQL.confirmation_page, bindings).fetchall()
            return confirmation_frames(rows, after_seq)

        return await self._pool.run(read)


def _queue_id(db: apsw.Connection, mesh: str, node: str) -> int | None:
    queue_id: int | None = db.execute(PINCH_SQL.queue_id_of, (mesh, node)).get
    return queue_id
