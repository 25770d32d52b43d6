"""Deliveries inside a transaction on PostgreSQL: accepting messages, confirming, closing and reopening.

Every method changes rows, the counters of their queue and the journal together. Changes are queued in the pipeline of
the group; only results that a method needs are read. Implements DeliveryUnit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posthouse.postgresql.server_connection import ServerConnection
from posthouse.relay.store.closing_deliveries import ClosingDeliveries, Found
from posthouse.relay.store.postgresql.pg_journal import SCHEMA, PgTransaction, pack
from posthouse.relay.store.postgresql.pg_meshes import read_mesh_rows
from posthouse.relay.wire.delivery_rows import (
    AttemptBounds,
    DeliveryRow,
    KnownMessage,
    KnownMessages,
    NewDedupeRecord,
    NewDelivery,
    NewGap,
    NewReceipt,
    QueuedDelivery,
    QueueDepth,
    ReceiptRow,
)
from posthouse.relay.wire.mesh_rows import MeshRows
from posthouse.storage.sql_files import Statements

SQL = Statements(SCHEMA, "deliveries.sql")


def insert_columns(db: ServerConnection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, given to the statement as one array for each column."""
    if rows:
        db.queue(statement, *map(list, zip(*rows, strict=True)))


class PgDeliveries(ClosingDeliveries):
    """Deliveries, in the transaction that is open."""

    def __init__(self, tx: PgTransaction) -> None:
        super().__init__(tx)
        self._tx = tx

    @property
    def _db(self) -> ServerConnection:
        return self._tx.db

    def records(self, keys: Sequence[tuple[int, str, str]]) -> KnownMessages:
        swept = self._db.queue(SQL.swept_through)
        found = self._db.rows(SQL.find_records, *map(list, zip(*keys, strict=True))) if keys else []
        records = {
            (sender, agent, client_message_id): KnownMessage(seq, id_.hex(), digest, at_ns, is_there)
            for sender, agent, client_message_id, seq, id_, digest, at_ns, is_there in found
        }
        (swept_through_ns,) = swept.fetchone() or (0,)
        return KnownMessages(records, swept_through_ns)

    def audience_version(self, mesh: str) -> int | None:
        version: int | None = self._db.value(SQL.audience_version, mesh)
        return version

    def audience_rows(self, mesh: str) -> MeshRows:
        return read_mesh_rows(self._db, mesh)

    def blockers(self, mesh: str, node: str) -> frozenset[str]:
        return frozenset(name for (name,) in self._db.rows(SQL.blockers, mesh, node))

    def queues(self, mesh: str, nodes: Sequence[str]) -> dict[str, QueueDepth]:
        found = self._db.rows(SQL.find_queues, mesh, list(nodes)) if nodes else []
        return {node: QueueDepth(queue_id, open_rows) for node, queue_id, open_rows in found}

    def grow(self, counts: Sequence[tuple[str, str, int]]) -> None:
        insert_columns(self._db, SQL.grow_queues, counts)

    def open(
        self,
        records: Sequence[NewDedupeRecord],
        queued: Sequence[QueuedDelivery],
        deliveries: Sequence[NewDelivery],
        mentions: Sequence[tuple[str, int]],
    ) -> None:
        insert_columns(self._db, SQL.insert_records, records)
        insert_columns(self._db, SQL.insert_queued, queued)
        insert_columns(self._db, SQL.insert_deliveries, deliveries)
        insert_columns(self._db, SQL.insert_mentions, mentions)

    def rows(self, queue_id: int, ids: Sequence[str]) -> list[DeliveryRow]:
        return [
            DeliveryRow(id_.hex(), seq, state, was_stored is not False, at_ns, sender)
            for id_, seq, state, was_stored, at_ns, sender in self._db.rows(SQL.rows_of_ids, queue_id, _keys(ids))
        ]

    def receipt_rows(self, queue_id: int, ids: Sequence[str]) -> list[ReceiptRow]:
        return [ReceiptRow(id_.hex(), *row) for id_, *row in self._db.rows(SQL.receipt_rows, queue_id, _keys(ids))]

    def add_receipts(self, receipts: Sequence[NewReceipt]) -> None:
        insert_columns(self._db, SQL.insert_receipts, [(*row, pack(reason)) for *row, reason in receipts])

    def add_gaps(self, gaps: Sequence[NewGap]) -> None:
        for gap in gaps:  # one by one: a queue may have several in a group, and ON CONFLICT changes a row once
            self._db.queue(SQL.insert_gap, *gap)

    def close_gap(self, mesh: str, node: str, topic: str, through_seq: int) -> None:
        queue_id = self._queue_id(mesh, node)
        self._db.queue(SQL.close_gap, queue_id, topic, through_seq)
        self._db.queue(SQL.shorten_gap, queue_id, topic, through_seq)

    def confirm(self, queue_id: int, seqs: Sequence[int], opened: int, parked: int) -> None:
        self._db.queue(SQL.confirm, queue_id, self._tx.now_ns, list(seqs))
        self._db.queue(SQL.shrink_queue, queue_id, opened, -parked)

    def mark_sent(self, mesh: str, node: str, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None:
        queue_id = self._queue_id(mesh, node)
        self._db.queue(SQL.mark_sent, queue_id, was_stored, self._tx.now_ns, list(seqs))
        self._tx.append_many([("delivery.sent", mesh, node, node, record_body)])

    def prune_records(self, seqs: Sequence[int]) -> None:
        self._db.queue(SQL.prune_records, list(seqs))

    def archive(self, seqs: Sequence[int]) -> None:
        for statement in (SQL.prune_records, SQL.delete_receipts, SQL.delete_deliveries):
            self._db.queue(statement, list(seqs))

    def _purgeable(self, queue_id: int, ids: Sequence[str] | None, states: Sequence[str], limit: int) -> Found:
        named = None if ids is None else _keys(ids)
        return with_text_ids(self._db.rows(SQL.purgeable, queue_id, named, [str(state) for state in states], limit))

    def _set_state(self, queue_id: int, state: str, seqs: Sequence[int], reason: str | None) -> None:
        self._db.queue(SQL.close, queue_id, state, self._tx.now_ns, pack(reason), list(seqs))

    def _shrink(self, queue_id: int, opened: int, parked: int) -> None:
        self._db.queue(SQL.shrink_queue, queue_id, opened, parked)

    def _count(self, queue_id: int | None, seqs: Sequence[int], bounds: AttemptBounds, *, is_timeout: bool) -> Found:
        self._db.queue(SQL.count_timeouts if is_timeout else SQL.count_flaps, queue_id, list(seqs))
        return with_text_ids(self._db.rows(SQL.spent, queue_id, list(seqs), *bounds))

    def _expired(self, queue_id: int, before_ns: int, limit: int) -> Found:
        return with_text_ids(self._db.rows(SQL.expired_rows, queue_id, before_ns, limit))

    def _unfinished_of_events(self, seqs: Sequence[int]) -> Found:
        rows = self._db.rows(SQL.unfinished_of_events, list(seqs))
        return [(*row, id_.hex(), state) for *row, id_, state in rows]

    def _of_sender(self, queue_id: int, from_: int) -> Found:
        return with_text_ids(self._db.rows(SQL.rows_of_sender, queue_id, from_))

    def _open_rows(self, queue_id: int) -> int:
        count: int = self._db.value(SQL.open_rows, queue_id)
        return count

    def _reopen(self, queue_id: int, seq: int, position: int) -> None:
        self._db.queue(SQL.reopen, queue_id, seq, position, self._tx.now_ns)

    def _next_records(self, after_seq: int, limit: int) -> Found:
        return self._db.rows(SQL.next_records, after_seq, limit)

    def _delete_records(self, seqs: Sequence[int]) -> None:
        for statement in (
            SQL.note_swept,
            SQL.delete_mentions,
            SQL.delete_receipts,
            SQL.delete_deliveries,
            SQL.delete_records,
        ):
            self._db.queue(statement, list(seqs))

    def _open_among(self, queue_id: int | None, seqs: Sequence[int]) -> Found:
        return with_text_ids(self._db.rows(SQL.open_among, queue_id, list(seqs)))

    def keep_confirmation(self, queue_id: int, seq: int, ids: int, items: str, reserve: int) -> None:
        self._db.queue(SQL.add_waiting_confirmation, seq, queue_id, ids, items)
        waiting: int = self._db.value(SQL.add_confirmation_ids, queue_id, ids)
        if waiting > reserve:
            self._drop_excess(queue_id, waiting - reserve, seq)

    def _oldest_confirmations(self, queue_id: int) -> Found:
        return self._db.rows(SQL.oldest_confirmations, queue_id)

    def drop_confirmations(self, mesh: str, node: str, through_seq: int) -> None:
        if (queue_id := self._queue_id(mesh, node)) is not None:
            self._drop_through(queue_id, through_seq)

    def _drop_through(self, queue_id: int, seq: int) -> None:
        self._db.queue(SQL.drop_confirmations, queue_id, seq)

    def _drop_waiting(self, seqs: Sequence[int]) -> None:
        self._db.queue(SQL.drop_waiting, list(seqs))

    def _queue_id(self, mesh: str, node: str) -> int | None:
        queue_id: int | None = self._db.value(SQL.queue_id_of, mesh, node)
        return queue_id


def _keys(ids: Sequence[str]) -> list[bytes]:
    """Return message ids as the database keeps them; text that is not an id finds nothing."""
    return [bytes.fromhex(id_) for id_ in ids]


def with_text_ids(rows: Found) -> Found:
    """Return rows (seq, id, ...) with the ids as text."""
    return [(seq, id_.hex(), *rest) for seq, id_, *rest in rows]
