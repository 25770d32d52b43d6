"""Reading deliveries on PostgreSQL, outside the writer; a page comes as the bytes that go to the reader.

Implements DeliveryReads. Also the deliveries of a journal snapshot: all that may still change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from posthouse.model.event import PROFILE, RECEIPT, Coordinate
from posthouse.model.limits import SECOND_NS
from posthouse.postgresql.server_connection import ServerConnection
from posthouse.postgresql.snapshot_reads import SnapshotReads
from posthouse.relay.store.event_rows import address_term
from posthouse.relay.store.postgresql.pg_deliveries import SQL
from posthouse.relay.store.postgresql.pg_journal import unpack
from posthouse.relay.wire.delivery_rows import (
    DELIVERY_FIELDS,
    NO_PAGE,
    QUEUE_FIELDS,
    RECORD_FIELDS,
    STATE_FIELDS,
    ConfirmationPage,
    DeliveryPage,
    GapRow,
    MeshQueues,
    QueueTotals,
)

R = TypeVar("R")
_encode = msgspec.json.Encoder().encode


class PgDeliveryReads:
    """Implements posthouse.relay.store.delivery_protocol.DeliveryReads."""

    def __init__(self, reads: SnapshotReads) -> None:
        self._reads = reads

    async def page(
        self, mesh: str, node: str, after: int, opened_since_ns: int, now_ns: int, limit: int
    ) -> DeliveryPage:
        def read(db: ServerConnection) -> DeliveryPage:
            bounds = (after, opened_since_ns, now_ns // SECOND_NS, limit)
            return _page(db.rows(SQL.page, queue_id_of(db, mesh, node), *bounds))

        return await self._reads.run(read)

    async def waiting(self, mesh: str, node: str, opened_since_ns: int) -> int:
        def read(db: ServerConnection) -> int:
            count: int = db.value(SQL.waiting, queue_id_of(db, mesh, node), opened_since_ns)
            return count

        return await self._reads.run(read)

    async def confirmations(self, mesh: str, node: str, after_seq: int, limit: int) -> ConfirmationPage:
        def read(db: ServerConnection) -> ConfirmationPage:
            rows = db.rows(SQL.confirmation_page, queue_id_of(db, mesh, node), after_seq, limit)
            commands = [
                b'["%b",%b,%b]' % (b"RECEIPT" if kind == RECEIPT else b"CONFIRMED", items.encode(), raw)
                for _seq, items, raw, kind in rows
            ]
            return ConfirmationPage(len(rows), rows[-1][0] if rows else after_seq, b",".join(commands))

        return await self._reads.run(read)

    async def gaps(self, mesh: str, node: str, limit: int) -> list[GapRow]:
        return await self._reads.run(
            lambda db: [GapRow(*row) for row in db.rows(SQL.gaps, queue_id_of(db, mesh, node), limit)]
        )

    async def profiles(self, mesh: str, nodes: Sequence[str], now_ns: int) -> list[bytes]:
        if not nodes:
            return []
        addresses = [address_term(Coordinate(PROFILE, node, "")) for node in nodes]
        return await self._all(lambda row: row[0], SQL.profiles, addresses, mesh, now_ns // SECOND_NS)

    async def due(self, before_ns: int, limit: int) -> list[tuple[str, str]]:
        return await self._all(lambda row: (row[0], row[1]), SQL.due_queues, before_ns, limit)

    async def totals(self) -> QueueTotals:
        return QueueTotals(await self._all(lambda row: MeshQueues(*row), SQL.totals))

    async def message(self, message_id: str, only: str | None) -> dict[str, Any] | None:
        return await self._reads.run(lambda db: _message(db, message_id, only))

    async def queues(self, mesh: str, after: str, limit: int) -> list[dict[str, Any]]:
        return await self._all(lambda row: dict(zip(QUEUE_FIELDS, row, strict=True)), SQL.queues, mesh, after, limit)

    async def queue_rows(
        self, mesh: str, node: str | None, states: Sequence[str], after: tuple[int, str], limit: int
    ) -> list[dict[str, Any]]:
        names = [str(state) for state in states]
        return await self._all(
            lambda row: _shown(DELIVERY_FIELDS, row), SQL.queue_rows, mesh, node, names, *after, limit
        )

    async def _all(self, make: Callable[[tuple[Any, ...]], R], statement: str, *parameters: Any) -> list[R]:
        return await self._reads.run(lambda db: [make(row) for row in db.rows(statement, *parameters)])


def queue_id_of(db: ServerConnection, mesh: str, node: str) -> int | None:
    """Return the number of a queue, None if there is none."""
    queue_id: int | None = db.value(SQL.queue_id_of, mesh, node)
    return queue_id


def _page(rows: list[tuple[Any, ...]]) -> DeliveryPage:
    if not rows:
        return NO_PAGE
    positions, seqs, ids, was_stored, attempts, raws = map(list, zip(*rows, strict=True))
    body = {"ids": [id_.hex() for id_ in ids], "was_stored": was_stored, "attempts": attempts}
    commands = [
        b'["DELIVER",%d,%b,{"was_stored":%b,"attempt":%d}]' % (seq, raw, b"true" if stored else b"false", attempt)
        for seq, raw, stored, attempt in zip(seqs, raws, was_stored, attempts, strict=True)
    ]
    return DeliveryPage(positions, seqs, b",".join(commands), _encode(body).decode())


def _message(db: ServerConnection, message_id: str, only: str | None) -> dict[str, Any] | None:
    found = db.row(SQL.record_of_message, bytes.fromhex(message_id))
    if found is None:
        return None
    record = dict(zip(RECORD_FIELDS, found, strict=True))
    seq = record["seq"]
    mentions, body = db.queue(SQL.mentions_of_message, seq), db.queue(SQL.record_body, seq)
    states = db.rows(SQL.states_of_message, seq, only)
    record["mentions"] = [mentioned for (mentioned,) in mentions]
    kept = body.fetchone()
    record["not_queued"] = [] if kept is None else msgspec.json.decode(kept[0]).get("not_queued", [])
    return record | {"deliveries": [_shown(STATE_FIELDS, row) for row in states]}


def _shown(fields: tuple[str, ...], row: tuple[Any, ...]) -> dict[str, Any]:
    """Return a row with the names of its columns; reasons are names that may hold any text."""
    return {name: unpack(value) if isinstance(value, bytes) else value for name, value in zip(fields, row, strict=True)}


def unfinished_deliveries(db: ServerConnection) -> dict[str, Any]:
    """Return open and parked deliveries and the counters of all queues."""
    rows = [
        {"mesh": mesh, "recipient": node, "id": id_.hex(), "seq": seq, "state": state}
        for mesh, node, id_, seq, state in db.rows(SQL.unfinished)
    ]
    counters = [
        {"mesh": mesh, "node": node, "open": open_rows, "parked": parked, "confirmation_ids": ids}
        for mesh, node, open_rows, parked, ids in db.rows(SQL.counters)
    ]
    return {"rows": rows, "counters": counters}
