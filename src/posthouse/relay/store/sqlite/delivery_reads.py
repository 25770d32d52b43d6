"""Reading deliveries on SQLite, outside the writer; a page comes as the bytes that go to the reader.

SQLite assembles the commands of a page, so a page costs one step however many deliveries it has. Implements
DeliveryReads. Also the deliveries of a journal snapshot: all that may still change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import apsw
import msgspec

from posthouse.model.event import PROFILE, Coordinate
from posthouse.model.limits import SECOND_NS
from posthouse.relay.store.event_rows import address_term
from posthouse.relay.store.sqlite.deliveries import READ_SQL as SQL
from posthouse.relay.store.sqlite.queries import known_ids
from posthouse.relay.wire.delivery_rows import (
    DELIVERY_FIELDS,
    NO_PAGE,
    OPEN,
    PARKED,
    QUEUE_FIELDS,
    RECORD_FIELDS,
    STATE_FIELDS,
    ConfirmationPage,
    DeliveryPage,
    GapRow,
    MeshQueues,
    QueueTotals,
)
from posthouse.sqlite.read_pool import ReadPool

R = TypeVar("R")
_encode = msgspec.json.Encoder().encode
_rows = msgspec.json.Decoder(list[dict[str, str]]).decode
_numbers = msgspec.json.Decoder(list[int]).decode


class SqliteDeliveryReads:
    """Implements posthouse.relay.store.delivery_protocol.DeliveryReads."""

    def __init__(self, pool: ReadPool) -> None:
        self._pool = pool

    async def page(
        self, mesh: str, node: str, after: int, opened_since_ns: int, now_ns: int, limit: int
    ) -> DeliveryPage:
        return await self._pool.run(lambda db: _page(db, mesh, node, after, opened_since_ns, now_ns, limit))

    async def waiting(self, mesh: str, node: str, opened_since_ns: int) -> int:
        def read(db: apsw.Connection) -> int:
            count: int = db.execute(SQL.waiting, (_queue_id(db, mesh, node), opened_since_ns)).get
            return count

        return await self._pool.run(read)

    async def confirmations(self, mesh: str, node: str, after_seq: int, limit: int) -> ConfirmationPage:
        def read(db: apsw.Connection) -> ConfirmationPage:
            found = db.execute(SQL.confirmation_page, (_queue_id(db, mesh, node), after_seq, limit)).fetchone()
            count, through_seq, text = found or (0, None, None)
            return ConfirmationPage(count, through_seq or after_seq, text or b"")

        return await self._pool.run(read)

    async def gaps(self, mesh: str, node: str, limit: int) -> list[GapRow]:
        return await self._pool.run(
            lambda db: [GapRow(*row) for row in db.execute(SQL.gaps, (_queue_id(db, mesh, node), limit))]
        )

    async def profiles(self, mesh: str, nodes: Sequence[str], now_ns: int) -> list[bytes]:
        if not nodes:
            return []
        addresses = tuple(address_term(Coordinate(PROFILE, node, "")) for node in nodes)
        bindings = (apsw.carray(addresses), mesh, now_ns // SECOND_NS)
        return await self._pool.run(lambda db: [raw for (raw,) in db.execute(SQL.profiles, bindings)])

    async def due(self, before_ns: int, limit: int) -> list[tuple[str, str]]:
        return await self._all(SQL.due_queues, (before_ns, limit), lambda row: (row[0], row[1]))

    async def totals(self) -> QueueTotals:
        return QueueTotals(await self._all(SQL.totals, (), lambda row: MeshQueues(*row)))

    async def message(self, message_id: str, only: str | None) -> dict[str, Any] | None:
        return await self._pool.run(lambda db: _message(db, message_id, only))

    async def queues(self, mesh: str, after: str, limit: int) -> list[dict[str, Any]]:
        return await self._all(SQL.queues, (mesh, after, limit), lambda row: dict(zip(QUEUE_FIELDS, row, strict=True)))

    async def queue_rows(
        self, mesh: str, node: str | None, states: Sequence[str], after: tuple[int, str], limit: int
    ) -> list[dict[str, Any]]:
        bindings = (mesh, node, _encode(list(states)).decode(), *after, limit)
        return await self._all(_rows_statement(states), bindings, lambda row: _shown(DELIVERY_FIELDS, row))

    async def _all(self, statement: str, bindings: tuple[Any, ...], make: Callable[[tuple[Any, ...]], R]) -> list[R]:
        return await self._pool.run(lambda db: [make(row) for row in db.execute(statement, bindings)])


def _page(
    db: apsw.Connection, mesh: str, node: str, after: int, opened_since_ns: int, now_ns: int, limit: int
) -> DeliveryPage:
    bindings = (_queue_id(db, mesh, node), after, opened_since_ns, now_ns // SECOND_NS, limit)
    found: Any = db.execute(SQL.page, bindings).fetchone()
    count, positions, seqs, record_body, text = found
    if not count:
        return NO_PAGE
    ordered = _numbers(positions)
    if any(left >= right for left, right in pairwise(ordered)):
        raise AssertionError("a page of deliveries is out of order")
    return DeliveryPage(ordered, _numbers(seqs), text, record_body)


def _message(db: apsw.Connection, message_id: str, only: str | None) -> dict[str, Any] | None:
    found = db.execute(SQL.record_of_message, (known_ids(db, [message_id]).get(message_id),)).fetchone()
    if found is None:
        return None
    record = dict(zip(RECORD_FIELDS, found, strict=True))
    record["history_available"] = bool(record["history_available"])
    states = db.execute(SQL.states_of_message, (record["seq"], only)).fetchall()
    record["mentions"] = [mentioned for (mentioned,) in db.execute(SQL.mentions_of_message, (record["seq"],))]
    not_queued = db.execute(SQL.not_queued, (record["seq"],)).get
    record["not_queued"] = [] if not_queued is None else _rows(not_queued)
    return record | {"deliveries": [_shown(STATE_FIELDS, row) for row in states]}


def _rows_statement(states: Sequence[str]) -> str:
    """Return the statement with an index for these states; closed deliveries have none, so all rows are read."""
    if OPEN.issuperset(states):
        return SQL.open_queue_rows
    return SQL.parked_queue_rows if PARKED.issuperset(states) else SQL.queue_rows


def _shown(fields: tuple[str, ...], row: tuple[Any, ...]) -> dict[str, Any]:
    shown = dict(zip(fields, row, strict=True))
    shown["was_stored"] = None if shown["was_stored"] is None else bool(shown["was_stored"])
    return shown


def _queue_id(db: apsw.Connection, mesh: str, node: str) -> int | None:
    queue_id: int | None = db.execute(SQL.queue_id_of, (mesh, node)).get
    return queue_id


def unfinished_deliveries(db: apsw.Connection) -> dict[str, Any]:
    """Return open and parked deliveries and the counters of all queues."""
    rows = [
        {"mesh": mesh, "recipient": node, "id": id_, "seq": seq, "state": state}
        for mesh, node, id_, seq, state in db.execute(SQL.unfinished)
    ]
    counters = [
        {"mesh": mesh, "node": node, "open": open_rows, "parked": parked, "confirmation_ids": ids}
        for mesh, node, open_rows, parked, ids in db.execute(SQL.counters)
    ]
    return {"rows": rows, "counters": counters}
