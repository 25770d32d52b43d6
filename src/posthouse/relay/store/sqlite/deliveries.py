"""Deliveries inside a transaction on SQLite: accepting messages, confirming, closing and reopening.

Each step of a statement releases the interpreter lock, and winning it back beside a busy event loop costs more than
the row. So a read returns all its rows as one JSON value, in one step. Every method changes rows, the counters of
their queue and the journal together. Implements DeliveryUnit.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import apsw
import msgspec

from posthouse.journal.append import JournalTransaction
from posthouse.relay.store.sqlite.meshes_and_locks import read_mesh_rows
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
from posthouse.sqlite.schema import Component
from posthouse.sqlite.statements import BulkInsert, Statements

_DELIVERIES_SCHEMA = "posthouse.relay.store.sqlite.schema.deliveries"
DELIVERIES = Component("deliveries", _DELIVERIES_SCHEMA)
ACCEPT_SQL = Statements(_DELIVERIES_SCHEMA, "accept.sql")
CLOSE_SQL = Statements(_DELIVERIES_SCHEMA, "close.sql")
CHECK_SQL = Statements(_DELIVERIES_SCHEMA, "check.sql")
READ_SQL = Statements(_DELIVERIES_SCHEMA, "read.sql")
_RECEIPTS = BulkInsert(CLOSE_SQL.insert_receipts, 5)
_encode = msgspec.json.Encoder().encode
_rows = msgspec.json.Decoder(list[list[Any]]).decode


class ClosingDeliveries:
    """Sending, confirming, closing and reopening deliveries."""

    def __init__(self, tx: JournalTransaction) -> None:
        self._tx = tx
        self._db = tx.db

    def rows(self, queue_id: int, ids: Sequence[str]) -> list[DeliveryRow]:
        keys = apsw.carray(tuple(bytes.fromhex(id_) for id_ in ids))
        found = _rows(self._db.execute(CLOSE_SQL.rows_of_ids, (queue_id, keys)).get)
        return [
            DeliveryRow(id_, seq, state, was_stored != 0, at_ns, sender)
            for id_, seq, state, was_stored, at_ns, sender in found
        ]

    def receipt_rows(self, queue_id: int, ids: Sequence[str]) -> list[ReceiptRow]:
        keys = apsw.carray(tuple(bytes.fromhex(id_) for id_ in ids))
        return [ReceiptRow(*row) for row in _rows(self._db.execute(CLOSE_SQL.receipt_rows, (queue_id, keys)).get)]

    def add_receipts(self, receipts: Sequence[NewReceipt]) -> None:
        _RECEIPTS.run(self._db, receipts)

    def confirm(self, queue_id: int, seqs: Sequence[int], opened: int, parked: int) -> None:
        self._db.execute(CLOSE_SQL.confirm, (self._tx.now_ns, queue_id, _ints(seqs)))
        self._db.execute(CLOSE_SQL.shrink_queue, (opened, -parked, queue_id))

    def mark_sent(self, mesh: str, node: str, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None:
        queue_id = self._queue_id(mesh, node)
        self._db.execute(CLOSE_SQL.mark_sent, (int(was_stored), self._tx.now_ns, queue_id, _ints(seqs)))
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
        keys = _ints(seqs)
        self._db.execute(CLOSE_SQL.count_timeouts if is_timeout else CLOSE_SQL.count_flaps, (queue_id, keys))
        spent: list[Any] = self._db.execute(CLOSE_SQL.spent, (queue_id, keys, *bounds)).fetchall()
        return self.park(mesh, node, spent, "confirm_timeout" if is_timeout else "connection_lost")

    def park(self, mesh: str, node: str, rows: Sequence[Any], reason: str) -> ClosedDeliveries:
        """Make open deliveries dead letters; a row is (seq, id, sends)."""
        queue_id = self._queue_id(mesh, node)
        if queue_id is None or not rows:
            return NO_DELIVERIES
        self._close(queue_id, "dead", [row[0] for row in rows], reason, parked=len(rows))
        for _seq, id_, sends in rows:
            body = {"attempts": sends, "reason": reason}
            self._tx.append("delivery.dead", mesh=mesh, actor=node, ref=id_, body=body)
        return ClosedDeliveries(mesh, node, [row[0] for row in rows], "dead")

    def expire(self, mesh: str, node: str, before_ns: int, limit: int) -> ClosedDeliveries:
        queue_id = self._queue_id(mesh, node)
        if queue_id is None:
            return NO_DELIVERIES
        found = _rows(self._db.execute(CLOSE_SQL.expired_rows, (queue_id, before_ns, limit)).get)
        return self._end(queue_id, mesh, node, "expired", found, {})

    def expire_events(self, seqs: Sequence[int]) -> None:
        """Close the open deliveries of messages that have expired, and mark their dedupe records."""
        by_queue: dict[tuple[int, str, str], list[list[Any]]] = {}
        rows: list[Any] = self._db.execute(CLOSE_SQL.open_rows_of_events, (_ints(seqs),)).fetchall()
        for queue_id, mesh, node, seq, id_ in rows:
            by_queue.setdefault((queue_id, mesh, node), []).append([seq, id_])
        for (queue_id, mesh, node), found in by_queue.items():
            self._end(queue_id, mesh, node, "expired", found, {})
        self.prune_records(seqs)

    def prune_records(self, seqs: Sequence[int]) -> None:
        """Mark dedupe records of messages whose content is gone."""
        self._db.execute(CLOSE_SQL.prune_records, (_ints(seqs),))

    def archive(self, seqs: Sequence[int]) -> None:
        """Delete the ended deliveries of messages whose content is gone; their dedupe records stay, marked."""
        self.prune_records(seqs)
        self._db.execute(CLOSE_SQL.delete_receipts, (_ints(seqs),))
        self._db.execute(CLOSE_SQL.delete_deliveries, (_ints(seqs),))

    def block(self, mesh: str, node: str, sender: str) -> ClosedDeliveries:
        queue_id, from_ = self._queue_id(mesh, node), self._queue_id(mesh, sender)
        if queue_id is None or from_ is None:
            return NO_DELIVERIES
        found = _rows(self._db.execute(CLOSE_SQL.rows_of_sender, (queue_id, from_)).get)
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
        seqs, names = [row[0] for row in found], [row[1] for row in found]
        parked = sum(row[2] in PARKED for row in found)
        self._db.execute(CLOSE_SQL.close, ("purged", self._tx.now_ns, None, queue_id, _ints(seqs)))
        self._db.execute(CLOSE_SQL.shrink_queue, (len(found) - parked, -parked, queue_id))
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
        room = max(0, queue_max - self._db.execute(CLOSE_SQL.open_rows, (queue_id,)).get)
        for seq, id_, state in found[:room]:
            body = with_via({"recipient": node, "from_state": state}, via)
            position = self._tx.append("delivery.requeued", mesh=mesh, actor=actor, ref=id_, body=body)
            self._db.execute(CLOSE_SQL.reopen, (position, self._tx.now_ns, queue_id, seq))
        reopened = [row[1] for row in found[:room]]
        self._db.execute(CLOSE_SQL.shrink_queue, (-len(reopened), -len(reopened), queue_id))
        return reopened, [row[1] for row in found[room:]]

    def sweep_records(self, after_seq: int, before_ns: int, limit: int) -> SweptRecords:
        rows: list[Any] = self._db.execute(CLOSE_SQL.next_records, (after_seq, limit)).fetchall()
        lasting = [seq for seq, _at, _needed in takewhile(lambda row: row[1] is None, rows)]
        ended = list(takewhile(lambda row: row[1] is None or row[1] < before_ns, rows))
        over = [seq for seq, expires_at_ns, is_needed in ended if expires_at_ns is not None and not is_needed]
        if over:
            for statement in (
                CLOSE_SQL.note_swept,
                CLOSE_SQL.delete_mentions,
                CLOSE_SQL.delete_receipts,
                CLOSE_SQL.delete_deliveries,
                CLOSE_SQL.delete_records,
            ):
                self._db.execute(statement, (_ints(over),))
        has_more = ended and len(ended) == len(rows)
        return SweptRecords(lasting[-1] if lasting else after_seq, ended[-1][0] if has_more else None)

    def _purgeable(
        self, queue_id: int, ids: Sequence[str] | None, states: Sequence[str], limit: int
    ) -> list[list[Any]]:
        named = None if ids is None else _encode(ids).decode()
        return _rows(self._db.execute(CLOSE_SQL.purgeable, (queue_id, named, _encode(states).decode(), limit)).get)

    def _end(
        self, queue_id: int, mesh: str, node: str, state: str, found: list[list[Any]], fields: dict[str, str]
    ) -> ClosedDeliveries:
        if not found:
            return NO_DELIVERIES
        seqs = [seq for seq, _id in found]
        self._close(queue_id, state, seqs, None)
        body = {"ids": [id_ for _seq, id_ in found]} | fields
        self._tx.append(f"delivery.{state}", mesh=mesh, actor=node, ref=node, body=body)
        return ClosedDeliveries(mesh, node, seqs, state)

    def _close(self, queue_id: int, state: str, seqs: Sequence[int], reason: str | None, parked: int = 0) -> None:
        self._db.execute(CLOSE_SQL.close, (state, self._tx.now_ns, reason, queue_id, _ints(seqs)))
        self._db.execute(CLOSE_SQL.shrink_queue, (len(seqs), parked, queue_id))

    def _queue_id(self, mesh: str, node: str) -> int | None:
        queue_id: int | None = self._db.execute(CLOSE_SQL.queue_id_of, (mesh, node)).get
        return queue_id


def _ints(values: Sequence[int]) -> Any:
    """Return integers as a value that a statement reads as a table."""
    return apsw.carray(array("q", values))


_RECORDS = BulkInsert(ACCEPT_SQL.insert_records, 9)
_QUEUED = BulkInsert(ACCEPT_SQL.insert_queued, 6)
_DELIVERIES = BulkInsert(ACCEPT_SQL.insert_deliveries, 9)
_GAPS = BulkInsert(ACCEPT_SQL.insert_gaps, 5, ACCEPT_SQL.widened)
_MENTIONS = BulkInsert(ACCEPT_SQL.insert_mentions, 2)
_GROW = BulkInsert(ACCEPT_SQL.grow_queues, 3, ACCEPT_SQL.grown)
_queue_rows = msgspec.json.Decoder(list[tuple[str, int, int] | None]).decode
_found = msgspec.json.Decoder(tuple[int, list[tuple[int, str, str, int, str, str, int, int]]]).decode
_names = msgspec.json.Decoder(frozenset[str]).decode


class SqliteDeliveries(ClosingDeliveries):
    """Accepting messages and keeping confirmations for senders."""

    def records(self, keys: Sequence[tuple[int, str, str]]) -> KnownMessages:
        swept_through_ns, found = _found(self._db.execute(ACCEPT_SQL.find_records, (_encode(keys).decode(),)).get)
        records = {
            (sender, agent, client_message_id): KnownMessage(seq, id_, bytes.fromhex(digest), at_ns, bool(is_there))
            for sender, agent, client_message_id, seq, id_, digest, at_ns, is_there in found
        }
        return KnownMessages(records, swept_through_ns)

    def audience_version(self, mesh: str) -> int | None:
        version: int | None = self._db.execute(ACCEPT_SQL.audience_version, (mesh,)).get
        return version

    def audience_rows(self, mesh: str) -> MeshRows:
        return read_mesh_rows(self._db, mesh)

    def blockers(self, mesh: str, node: str) -> frozenset[str]:
        return _names(self._db.execute(ACCEPT_SQL.blockers, (mesh, node)).get)

    def queues(self, mesh: str, nodes: Sequence[str]) -> dict[str, QueueDepth]:
        if not nodes:
            return {}
        found = _queue_rows(self._db.execute(ACCEPT_SQL.find_queues, (mesh, apsw.carray(tuple(nodes)))).get)
        return {node: QueueDepth(queue_id, open_rows) for node, queue_id, open_rows in filter(None, found)}

    def grow(self, counts: Sequence[tuple[str, str, int]]) -> None:
        _GROW.run(self._db, counts)

    def open(
        self,
        records: Sequence[NewDedupeRecord],
        queued: Sequence[QueuedDelivery],
        deliveries: Sequence[NewDelivery],
        mentions: Sequence[tuple[str, int]],
    ) -> None:
        _RECORDS.run(self._db, records)
        _QUEUED.run(self._db, queued)
        _DELIVERIES.run(self._db, deliveries)
        _MENTIONS.run(self._db, mentions)

    def add_gaps(self, gaps: Sequence[NewGap]) -> None:
        _GAPS.run(self._db, gaps)

    def close_gap(self, mesh: str, node: str, topic: str, through_seq: int) -> None:
        bindings = (self._queue_id(mesh, node), topic, through_seq)
        self._db.execute(ACCEPT_SQL.close_gap, bindings)
        self._db.execute(ACCEPT_SQL.shorten_gap, bindings)

    def note_read(self, mesh: str, node: str, seqs: Sequence[int]) -> ClosedDeliveries:
        queue_id = self._queue_id(mesh, node)
        found = _rows(self._db.execute(CLOSE_SQL.open_among, (queue_id, _ints(seqs))).get)
        if queue_id is None or not found:
            return NO_DELIVERIES
        read = [seq for seq, _id, _stored in found]
        self.confirm(queue_id, read, len(read), 0)
        body = {
            "ids": [id_ for _seq, id_, _stored in found],
            "was_stored": [bool(stored) for _seq, _id, stored in found],
            "confirmation": "",
        }
        self._tx.append("delivery.confirmed", mesh=mesh, actor=node, ref=node, body=body)
        return ClosedDeliveries(mesh, node, read, "confirmed")

    def keep_confirmation(self, queue_id: int, seq: int, ids: int, items: str, reserve: int) -> None:
        self._db.execute(ACCEPT_SQL.add_waiting_confirmation, (seq, queue_id, ids, items))
        waiting: int = self._db.execute(ACCEPT_SQL.add_confirmation_ids, (ids, queue_id)).get
        while waiting > reserve:
            waiting -= self._drop_oldest(queue_id, waiting - reserve, seq)

    def drop_confirmations(self, mesh: str, node: str, through_seq: int) -> None:
        queue_id = self._queue_id(mesh, node)
        if queue_id is not None:
            self._drop_through(queue_id, through_seq)

    def _drop_oldest(self, queue_id: int, excess: int, newest: int) -> int:
        """Drop the oldest confirmations until so many ids are gone, but never the newest one."""
        dropped, through = 0, 0
        oldest: list[Any] = self._db.execute(ACCEPT_SQL.oldest_confirmations, (queue_id,)).fetchall()
        for seq, ids in oldest:
            if dropped >= excess or seq == newest:
                break
            dropped, through = dropped + ids, seq
        self._drop_through(queue_id, through)
        return dropped or excess

    def _drop_through(self, queue_id: int, seq: int) -> None:
        ids: int = self._db.execute(ACCEPT_SQL.drop_confirmations_total, (queue_id, seq)).get
        if ids:
            self._db.execute(ACCEPT_SQL.drop_confirmations, (queue_id, seq)).fetchall()
            self._db.execute(ACCEPT_SQL.add_confirmation_ids, (-ids, queue_id)).fetchall()
