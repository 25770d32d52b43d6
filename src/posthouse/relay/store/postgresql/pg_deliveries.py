"""Deliveries inside a transaction on PostgreSQL: accepting messages, confirming, closing and reopening.

Every method changes rows, the counters of their queue and the journal together. Changes are queued in the pipeline of
the group; only what a method has to know is read. Implements DeliveryUnit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from posthouse.postgresql.server_connection import ServerConnection
from posthouse.relay.store.postgresql.pg_journal import SCHEMA, PgTransaction, pack
from posthouse.relay.store.postgresql.pg_meshes import read_mesh_rows
from posthouse.relay.wire.delivery_rows import (
    NO_DELIVERIES,
    OPEN,
    PARKED,
    AttemptBounds,
    ClosedDeliveries,
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
    SweptRecords,
    with_via,
)
from posthouse.relay.wire.mesh_rows import MeshRows
from posthouse.sqlite.statements import Statements

SQL = Statements(SCHEMA, "deliveries.sql")
#: rows of a queue as (seq, id, ...)
Found = Sequence[tuple[Any, ...]]


def insert_columns(db: ServerConnection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, given to the statement as one array for each column."""
    if rows:
        db.queue(statement, *map(list, zip(*rows, strict=True)))


class PgDeliveries:
    """Deliveries, in the transaction that is open."""

    def __init__(self, tx: PgTransaction) -> None:
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

    def note_read(self, mesh: str, node: str, seqs: Sequence[int]) -> ClosedDeliveries:
        queue_id = self._queue_id(mesh, node)
        found = self._db.rows(SQL.open_among, queue_id, list(seqs))
        if queue_id is None or not found:
            return NO_DELIVERIES
        read, ids, was_stored = map(list, zip(*found, strict=True))
        self.confirm(queue_id, read, len(read), 0)
        body = {"ids": [id_.hex() for id_ in ids], "was_stored": was_stored, "confirmation": ""}
        self._tx.append("delivery.confirmed", mesh=mesh, actor=node, ref=node, body=body)
        return ClosedDeliveries(mesh, node, read, "confirmed")

    def keep_confirmation(self, queue_id: int, seq: int, ids: int, items: str, reserve: int) -> None:
        self._db.queue(SQL.add_waiting_confirmation, seq, queue_id, ids, items)
        waiting: int = self._db.value(SQL.add_confirmation_ids, queue_id, ids)
        while waiting > reserve:
            waiting -= self._drop_oldest(queue_id, waiting - reserve, seq)

    def drop_confirmations(self, mesh: str, node: str, through_seq: int) -> None:
        queue_id = self._queue_id(mesh, node)
        if queue_id is not None:
            self._db.queue(SQL.drop_confirmations, queue_id, through_seq)

    def mark_sent(self, mesh: str, node: str, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None:
        queue_id = self._queue_id(mesh, node)
        self._db.queue(SQL.mark_sent, queue_id, was_stored, self._tx.now_ns, list(seqs))
        self._tx.append_many([("delivery.sent", mesh, node, node, record_body)])

    def reject(
        self, mesh: str, node: str, message_id: str, reason: str, before_ns: int
    ) -> tuple[str, ClosedDeliveries]:
        queue_id = self._queue_id(mesh, node)
        found = [] if queue_id is None else self.rows(queue_id, [message_id])
        if queue_id is None or not found:
            return "", NO_DELIVERIES
        row = found[0]
        if row.state not in OPEN:
            return row.state, NO_DELIVERIES
        if row.opened_at_ns < before_ns:
            return "expired", NO_DELIVERIES
        self._close(queue_id, "rejected", [row.seq], reason, parked=1)
        self._tx.append("delivery.rejected", mesh=mesh, actor=node, ref=message_id, body={"reason": reason})
        return "rejected", ClosedDeliveries(mesh, node, [row.seq], "rejected")

    def count_attempts(
        self, mesh: str, node: str, seqs: Sequence[int], bounds: AttemptBounds, *, is_timeout: bool
    ) -> ClosedDeliveries:
        queue_id = self._queue_id(mesh, node)
        self._db.queue(SQL.count_timeouts if is_timeout else SQL.count_flaps, queue_id, list(seqs))
        spent = self._db.rows(SQL.spent, queue_id, list(seqs), *bounds)
        return self.park(mesh, node, spent, "confirm_timeout" if is_timeout else "connection_lost")

    def park(self, mesh: str, node: str, rows: Found, reason: str) -> ClosedDeliveries:
        """Make open deliveries dead letters; a row is (seq, id, sends)."""
        queue_id = self._queue_id(mesh, node)
        if queue_id is None or not rows:
            return NO_DELIVERIES
        seqs = [row[0] for row in rows]
        self._close(queue_id, "dead", seqs, reason, parked=len(rows))
        for _seq, id_, sends in rows:
            body = {"attempts": sends, "reason": reason}
            self._tx.append("delivery.dead", mesh=mesh, actor=node, ref=id_.hex(), body=body)
        return ClosedDeliveries(mesh, node, seqs, "dead")

    def expire(self, mesh: str, node: str, before_ns: int, limit: int) -> ClosedDeliveries:
        queue_id = self._queue_id(mesh, node)
        if queue_id is None:
            return NO_DELIVERIES
        found = self._db.rows(SQL.expired_rows, queue_id, before_ns, limit)
        return self._end(queue_id, mesh, node, "expired", found, {})

    def expire_events(self, seqs: Sequence[int]) -> None:
        """Close the open deliveries of messages that have expired, and mark their dedupe records."""
        by_queue: dict[tuple[int, str, str], list[tuple[int, bytes]]] = {}
        for queue_id, mesh, node, seq, id_ in self._db.rows(SQL.open_rows_of_events, list(seqs)):
            by_queue.setdefault((queue_id, mesh, node), []).append((seq, id_))
        for (queue_id, mesh, node), found in by_queue.items():
            self._end(queue_id, mesh, node, "expired", found, {})
        self._db.queue(SQL.prune_records, list(seqs))

    def archive(self, seqs: Sequence[int]) -> None:
        """Delete the ended deliveries of messages whose content is gone; their dedupe records stay, marked."""
        for statement in (SQL.prune_records, SQL.delete_receipts, SQL.delete_deliveries):
            self._db.queue(statement, list(seqs))

    def block(self, mesh: str, node: str, sender: str) -> ClosedDeliveries:
        queue_id, from_ = self._queue_id(mesh, node), self._queue_id(mesh, sender)
        if queue_id is None or from_ is None:
            return NO_DELIVERIES
        found = self._db.rows(SQL.rows_of_sender, queue_id, from_)
        return self._end(queue_id, mesh, node, "blocked", found, {"sender": sender})

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
        queue_id = self._queue_id(mesh, node)
        found = [] if queue_id is None else self._purgeable(queue_id, ids, states, limit)
        if queue_id is None or not found:
            return [], NO_DELIVERIES
        seqs, names = [row[0] for row in found], [row[1].hex() for row in found]
        parked = sum(row[2] in PARKED for row in found)
        self._db.queue(SQL.close, queue_id, "purged", self._tx.now_ns, None, seqs)
        self._db.queue(SQL.shrink_queue, queue_id, len(found) - parked, -parked)
        body = with_via({"ids": names, "recipient": node}, via)
        self._tx.append("delivery.purged", mesh=mesh, actor=actor, ref=node, body=body)
        return names, ClosedDeliveries(mesh, node, seqs, "purged")

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
        queue_id = self._queue_id(mesh, node)
        found = [] if queue_id is None else self._purgeable(queue_id, ids, sorted(PARKED), limit)
        if queue_id is None or not found:
            return [], []
        room = max(0, queue_max - self._db.value(SQL.open_rows, queue_id))
        names = [id_.hex() for _seq, id_, _state in found]
        for name, (seq, _id, state) in zip(names[:room], found[:room], strict=True):
            body = with_via({"recipient": node, "from_state": state}, via)
            position = self._tx.append("delivery.requeued", mesh=mesh, actor=actor, ref=name, body=body)
            self._db.queue(SQL.reopen, queue_id, seq, position, self._tx.now_ns)
        reopened = names[:room]
        self._db.queue(SQL.shrink_queue, queue_id, -len(reopened), -len(reopened))
        return reopened, names[room:]

    def sweep_records(self, after_seq: int, before_ns: int, limit: int) -> SweptRecords:
        rows = self._db.rows(SQL.next_records, after_seq, limit)
        lasting = [seq for seq, _at, _needed in takewhile(lambda row: row[1] is None, rows)]
        ended = list(takewhile(lambda row: row[1] is None or row[1] < before_ns, rows))
        over = [seq for seq, expires_at_ns, is_needed in ended if expires_at_ns is not None and not is_needed]
        if over:
            for statement in (
                SQL.note_swept,
                SQL.delete_mentions,
                SQL.delete_receipts,
                SQL.delete_deliveries,
                SQL.delete_records,
            ):
                self._db.queue(statement, over)
        has_more = ended and len(ended) == len(rows)
        return SweptRecords(lasting[-1] if lasting else after_seq, ended[-1][0] if has_more else None)

    def _drop_oldest(self, queue_id: int, excess: int, newest: int) -> int:
        """Drop the oldest confirmations until so many ids are gone, but never the newest one."""
        dropped, through = 0, 0
        for seq, ids in self._db.rows(SQL.oldest_confirmations, queue_id):
            if dropped >= excess or seq == newest:
                break
            dropped, through = dropped + ids, seq
        self._db.queue(SQL.drop_confirmations, queue_id, through)
        return dropped or excess

    def _purgeable(self, queue_id: int, ids: Sequence[str] | None, states: Sequence[str], limit: int) -> Found:
        named = None if ids is None else _keys(ids)
        return self._db.rows(SQL.purgeable, queue_id, named, [str(state) for state in states], limit)

    def _end(
        self, queue_id: int, mesh: str, node: str, state: str, found: Found, fields: dict[str, str]
    ) -> ClosedDeliveries:
        if not found:
            return NO_DELIVERIES
        seqs = [seq for seq, _id in found]
        self._close(queue_id, state, seqs, None)
        body = {"ids": [id_.hex() for _seq, id_ in found]} | fields
        self._tx.append(f"delivery.{state}", mesh=mesh, actor=node, ref=node, body=body)
        return ClosedDeliveries(mesh, node, seqs, state)

    def _close(self, queue_id: int, state: str, seqs: list[int], reason: str | None, parked: int = 0) -> None:
        self._db.queue(SQL.close, queue_id, state, self._tx.now_ns, pack(reason), seqs)
        self._db.queue(SQL.shrink_queue, queue_id, len(seqs), parked)

    def _queue_id(self, mesh: str, node: str) -> int | None:
        queue_id: int | None = self._db.value(SQL.queue_id_of, mesh, node)
        return queue_id


def _keys(ids: Sequence[str]) -> list[bytes]:
    """Return message ids as the database keeps them; text that is no id finds nothing."""
    return [bytes.fromhex(id_) for id_ in ids]
