"""Deliveries inside a transaction on SQLite: few statements whatever the number of rows.

Each step of a statement gives the interpreter lock away, so what a batch needs to know comes as one JSON value in
one step. Implements posthouse.relay.deliver.interface.DeliveryUnit, together with posthouse.relay.deliver.sqlite.close.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from posthouse.relay.deliver.rows import (
    NONE_CLOSED,
    Box,
    Closed,
    KnownMessage,
    KnownMessages,
    NewDelivery,
    NewRecord,
    QueuedDelivery,
)
from posthouse.relay.deliver.sqlite.close import ClosingDeliveries
from posthouse.relay.deliver.sqlite.component import ACCEPT_SQL as SQL
from posthouse.relay.deliver.sqlite.component import CLOSE_SQL
from posthouse.relay.meshes.rows import AccessRow, MemberRow, MeshRow, MeshRows, Role, TopicRow, Verdict
from posthouse.sqlite.bulk import BulkInsert

_RECORDS = BulkInsert(SQL.insert_records, 7)
_QUEUED = BulkInsert(SQL.insert_queued, 6)
_DELIVERIES = BulkInsert(SQL.insert_deliveries, 9)
_MENTIONS = BulkInsert(SQL.insert_mentions, 2)
_GROW = BulkInsert(SQL.grow_mailboxes, 3, SQL.grown)
_encode = msgspec.json.Encoder().encode
_rows = msgspec.json.Decoder(list[list[Any]]).decode
_boxes = msgspec.json.Decoder(list[tuple[str, int, int] | None]).decode
_found = msgspec.json.Decoder(tuple[int, list[tuple[int, str, int, str, str, int, int]]]).decode
_names = msgspec.json.Decoder(frozenset[str]).decode


class SqliteDeliveries(ClosingDeliveries):
    """Accepting messages and telling senders; closing rows is inherited."""

    def records(self, keys: Sequence[tuple[int, str]]) -> KnownMessages:
        swept_through_ns, found = _found(self._db.execute(SQL.find_records, (_encode(keys).decode(),)).get)
        records = {
            (sender, client_message_id): KnownMessage(seq, id_, bytes.fromhex(digest), at_ns, bool(is_there))
            for sender, client_message_id, seq, id_, digest, at_ns, is_there in found
        }
        return KnownMessages(records, swept_through_ns)

    def audience_version(self, mesh: str) -> int | None:
        version: int | None = self._db.execute(SQL.audience_version, (mesh,)).get
        return version

    def audience_rows(self, mesh: str) -> MeshRows:
        db, key = self._db, (mesh,)
        return MeshRows(
            meshes=[MeshRow(name, bool(is_open), *rest) for name, is_open, *rest in db.execute(SQL.mesh_of, key)],
            members=[MemberRow(m, node, name, Role(role)) for m, node, name, role in db.execute(SQL.members_of, key)],
            access=[
                AccessRow(m, node, *map(Verdict, verdicts)) for m, node, *verdicts in db.execute(SQL.access_of, key)
            ],
            topics=[TopicRow(*row) for row in db.execute(SQL.topics_of, key)],
            subscriptions=[(m, node, pattern) for m, node, pattern in db.execute(SQL.subscriptions_of, key)],
            blocks=[(m, node, blocked) for m, node, blocked in db.execute(SQL.blocks_of, key)],
        )

    def blockers(self, mesh: str, node: str) -> frozenset[str]:
        return _names(self._db.execute(SQL.blockers, (mesh, node)).get)

    def boxes(self, mesh: str, nodes: Sequence[str]) -> dict[str, Box]:
        if not nodes:
            return {}
        found = _boxes(self._db.execute(SQL.find_mailboxes, (mesh, apsw.carray(tuple(nodes)))).get)
        return {node: Box(mailbox, open_rows) for node, mailbox, open_rows in filter(None, found)}

    def grow(self, counts: Sequence[tuple[str, str, int]]) -> None:
        _GROW.run(self._db, counts)

    def open(
        self,
        records: Sequence[NewRecord],
        queued: Sequence[QueuedDelivery],
        deliveries: Sequence[NewDelivery],
        mentions: Sequence[tuple[str, int]],
    ) -> None:
        _RECORDS.run(self._db, records)
        _QUEUED.run(self._db, queued)
        _DELIVERIES.run(self._db, deliveries)
        _MENTIONS.run(self._db, mentions)

    def note_read(self, mesh: str, node: str, seqs: Sequence[int]) -> Closed:
        mailbox = self._mailbox(mesh, node)
        keys = apsw.carray(array("q", seqs))
        found = _rows(self._db.execute(CLOSE_SQL.open_among, (mailbox, keys)).get)
        if mailbox is None or not found:
            return NONE_CLOSED
        read = [seq for seq, _id, _stored in found]
        self.confirm(mailbox, read, len(read), 0)
        body = {
            "ids": [id_ for _seq, id_, _stored in found],
            "was_stored": [bool(stored) for _seq, _id, stored in found],
            "confirmation": "",
        }
        self._tx.append("delivery.confirmed", mesh=mesh, actor=node, ref=node, body=body)
        return Closed(mesh, node, read, "confirmed")

    def tell_sender(self, mailbox: int, seq: int, ids: int, items: str, reserve: int) -> None:
        self._db.execute(SQL.add_waiting_confirmation, (seq, mailbox, ids, items))
        waiting: int = self._db.execute(SQL.add_confirmation_ids, (ids, mailbox)).get
        while waiting > reserve:
            waiting -= self._drop_oldest(mailbox, waiting - reserve, seq)

    def forget_told(self, mesh: str, node: str, through_seq: int) -> None:
        mailbox = self._mailbox(mesh, node)
        if mailbox is not None:
            self._drop_through(mailbox, through_seq)

    def _drop_oldest(self, mailbox: int, excess: int, newest: int) -> int:
        """Drop the oldest confirmations until so many ids are gone; the newest one stays whatever its size."""
        dropped, through = 0, 0
        oldest: list[Any] = self._db.execute(SQL.oldest_confirmations, (mailbox,)).fetchall()
        for seq, ids in oldest:
            if dropped >= excess or seq == newest:
                break
            dropped, through = dropped + ids, seq
        self._drop_through(mailbox, through)
        return dropped or excess

    def _drop_through(self, mailbox: int, seq: int) -> None:
        ids: int = self._db.execute(SQL.drop_confirmations_total, (mailbox, seq)).get
        if ids:
            self._db.execute(SQL.drop_confirmations, (mailbox, seq)).fetchall()
            self._db.execute(SQL.add_confirmation_ids, (-ids, mailbox)).fetchall()
