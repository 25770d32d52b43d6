"""Deliveries inside a transaction on SQLite: accepting messages, confirming, closing and reopening.

Each step of a statement releases the interpreter lock, and getting it back from a busy event loop costs more than the
row. So a read returns all its rows as one JSON value, in one step. Every method changes rows, the counters of their
queue and the journal together. Implements DeliveryUnit.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from posthouse.journal.append import JournalTransaction
from posthouse.relay.store.closing_deliveries import ClosingDeliveries, Found
from posthouse.relay.store.sqlite.event_index import EventIndex
from posthouse.relay.store.sqlite.meshes_and_locks import read_mesh_rows
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
from posthouse.sqlite.transaction import BulkInsert
from posthouse.storage.sql_files import Component, Statements

_DELIVERIES_SCHEMA = "posthouse.relay.store.sqlite.schema.deliveries"
DELIVERIES = Component("deliveries", _DELIVERIES_SCHEMA)
ACCEPT_SQL = Statements(_DELIVERIES_SCHEMA, "accept.sql")
CLOSE_SQL = Statements(_DELIVERIES_SCHEMA, "close.sql")
CHECK_SQL = Statements(_DELIVERIES_SCHEMA, "check.sql")
READ_SQL = Statements(_DELIVERIES_SCHEMA, "read.sql")
_RECEIPTS = BulkInsert(CLOSE_SQL.insert_receipts, 5)
_encode = msgspec.json.Encoder().encode
_rows = msgspec.json.Decoder(list[list[Any]]).decode


class _Closing(ClosingDeliveries):
    """The statements that send, confirm, close and reopen deliveries."""

    def __init__(self, tx: JournalTransaction, events: EventIndex) -> None:
        super().__init__(tx)
        self._tx = tx
        self._db = tx.db
        self._events = events

    def rows(self, queue_id: int, ids: Sequence[str]) -> list[DeliveryRow]:
        return [
            DeliveryRow(id_, seq, state, was_stored != 0, at_ns, sender)
            for id_, seq, state, was_stored, at_ns, sender in self._rows_of(CLOSE_SQL.rows_of_seqs, queue_id, ids)
        ]

    def receipt_rows(self, queue_id: int, ids: Sequence[str]) -> list[ReceiptRow]:
        return [ReceiptRow(*row) for row in self._rows_of(CLOSE_SQL.receipt_rows, queue_id, ids)]

    def _rows_of(self, statement: str, queue_id: int, ids: Sequence[str]) -> list[list[Any]]:
        """Return the rows of a queue for these ids, in the same order."""
        known = self._events.seqs_of(ids)
        seqs = [known[id_] for id_ in ids if id_ in known]
        return _rows(self._db.execute(statement, (queue_id, _ints(seqs))).get) if seqs else []

    def add_receipts(self, receipts: Sequence[NewReceipt]) -> None:
        _RECEIPTS.run(self._db, receipts)

    def confirm(self, queue_id: int, seqs: Sequence[int], opened: int, parked: int) -> None:
        self._db.execute(CLOSE_SQL.confirm, (self._tx.now_ns, queue_id, _ints(seqs)))
        self._db.execute(CLOSE_SQL.shrink_queue, (opened, -parked, queue_id))

    def mark_sent(self, mesh: str, node: str, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None:
        queue_id = self._queue_id(mesh, node)
        self._db.execute(CLOSE_SQL.mark_sent, (int(was_stored), self._tx.now_ns, queue_id, _ints(seqs)))
        self._tx.append_many([("delivery.sent", mesh, node, node, record_body)])

    def prune_records(self, seqs: Sequence[int]) -> None:
        self._db.execute(CLOSE_SQL.prune_records, (_ints(seqs),))

    def archive(self, seqs: Sequence[int]) -> None:
        self.prune_records(seqs)
        self._db.execute(CLOSE_SQL.delete_receipts, (_ints(seqs),))
        self._db.execute(CLOSE_SQL.delete_deliveries, (_ints(seqs),))

    def _purgeable(self, queue_id: int, ids: Sequence[str] | None, states: Sequence[str], limit: int) -> Found:
        named = None if ids is None else _encode(ids).decode()
        return _rows(self._db.execute(CLOSE_SQL.purgeable, (queue_id, named, _encode(states).decode(), limit)).get)

    def _set_state(self, queue_id: int, state: str, seqs: Sequence[int], reason: str | None) -> None:
        self._db.execute(CLOSE_SQL.close, (state, self._tx.now_ns, reason, queue_id, _ints(seqs)))

    def _shrink(self, queue_id: int, opened: int, parked: int) -> None:
        self._db.execute(CLOSE_SQL.shrink_queue, (opened, parked, queue_id))

    def _count(self, queue_id: int | None, seqs: Sequence[int], bounds: AttemptBounds, *, is_timeout: bool) -> Found:
        keys = _ints(seqs)
        self._db.execute(CLOSE_SQL.count_timeouts if is_timeout else CLOSE_SQL.count_flaps, (queue_id, keys))
        spent: list[Any] = self._db.execute(CLOSE_SQL.spent, (queue_id, keys, *bounds)).fetchall()
        return spent

    def _expired(self, queue_id: int, before_ns: int, limit: int) -> Found:
        return _rows(self._db.execute(CLOSE_SQL.expired_rows, (queue_id, before_ns, limit)).get)

    def _unfinished_of_events(self, seqs: Sequence[int]) -> Found:
        rows: list[Any] = self._db.execute(CLOSE_SQL.unfinished_of_events, (_ints(seqs),)).fetchall()
        return rows

    def _of_sender(self, queue_id: int, from_: int) -> Found:
        return _rows(self._db.execute(CLOSE_SQL.rows_of_sender, (queue_id, from_)).get)

    def _open_rows(self, queue_id: int) -> int:
        count: int = self._db.execute(CLOSE_SQL.open_rows, (queue_id,)).get
        return count

    def _reopen(self, queue_id: int, seq: int, position: int) -> None:
        self._db.execute(CLOSE_SQL.reopen, (position, self._tx.now_ns, queue_id, seq))

    def _next_records(self, after_seq: int, limit: int) -> Found:
        rows: list[Any] = self._db.execute(CLOSE_SQL.next_records, (after_seq, limit)).fetchall()
        return rows

    def _delete_records(self, seqs: Sequence[int]) -> None:
        for statement in (
            CLOSE_SQL.note_swept,
            CLOSE_SQL.delete_mentions,
            CLOSE_SQL.delete_receipts,
            CLOSE_SQL.delete_deliveries,
            CLOSE_SQL.delete_records,
        ):
            self._db.execute(statement, (_ints(seqs),))

    def _open_among(self, queue_id: int | None, seqs: Sequence[int]) -> Found:
        found = _rows(self._db.execute(CLOSE_SQL.open_among, (queue_id, _ints(seqs))).get)
        return [(seq, id_, bool(was_stored)) for seq, id_, was_stored in found]

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


class SqliteDeliveries(_Closing):
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
        if deliveries:
            _DELIVERIES.run(self._db, deliveries)
        if mentions:
            _MENTIONS.run(self._db, mentions)

    def add_gaps(self, gaps: Sequence[NewGap]) -> None:
        _GAPS.run(self._db, gaps)

    def close_gap(self, mesh: str, node: str, topic: str, through_seq: int) -> None:
        bindings = (self._queue_id(mesh, node), topic, through_seq)
        self._db.execute(ACCEPT_SQL.close_gap, bindings)
        self._db.execute(ACCEPT_SQL.shorten_gap, bindings)

    def keep_confirmation(self, queue_id: int, seq: int, ids: int, items: str, reserve: int) -> None:
        self._db.execute(ACCEPT_SQL.add_waiting_confirmation, (seq, queue_id, ids, items))
        self._db.execute(ACCEPT_SQL.add_confirmation_ids, (ids, queue_id))
        waiting: int = self._db.execute(ACCEPT_SQL.confirmation_ids, (queue_id,)).get
        if waiting > reserve:
            self._drop_excess(queue_id, waiting - reserve, seq)

    def _oldest_confirmations(self, queue_id: int) -> Found:
        oldest: list[Any] = self._db.execute(ACCEPT_SQL.oldest_confirmations, (queue_id,)).fetchall()
        return oldest

    def drop_confirmations(self, mesh: str, node: str, through_seq: int) -> None:
        if (queue_id := self._queue_id(mesh, node)) is not None:
            self._drop_through(queue_id, through_seq)

    def _drop_through(self, queue_id: int, seq: int) -> None:
        ids: int = self._db.execute(ACCEPT_SQL.drop_confirmations_total, (queue_id, seq)).get
        if ids:
            self._db.execute(ACCEPT_SQL.drop_confirmations, (queue_id, seq))
            self._db.execute(ACCEPT_SQL.add_confirmation_ids, (-ids, queue_id))

    def _drop_waiting(self, seqs: Sequence[int]) -> None:
        waiting: list[Any] = self._db.execute(ACCEPT_SQL.waiting_among, (_ints(seqs),)).fetchall()
        for queue_id, ids in waiting:
            self._db.execute(ACCEPT_SQL.add_confirmation_ids, (-ids, queue_id))
        if waiting:
            self._db.execute(ACCEPT_SQL.drop_waiting, (_ints(seqs),))
