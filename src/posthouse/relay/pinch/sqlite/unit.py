"""Pinch envelopes inside a transaction on SQLite; implements posthouse.relay.pinch.rows.PinchUnit."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import apsw

from posthouse.relay.deliver.rows import Row
from posthouse.relay.pinch.rows import NewEnvelope
from posthouse.relay.pinch.sqlite.component import SQL
from posthouse.sqlite.bulk import BulkInsert

_ENVELOPES = BulkInsert(SQL.insert_envelopes, 7)


class SqlitePinch:
    """The envelopes of one store."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def is_known(self, sender: int, message_id: bytes, since_ns: int) -> bool:
        return bool(self._db.execute(SQL.find_known, (message_id, sender, since_ns)).get)

    def add(self, rows: Sequence[NewEnvelope]) -> None:
        _ENVELOPES.run(self._db, rows)

    def find(self, reader: int, sender: int, message_id: bytes) -> Row | None:
        found: Any = self._db.execute(SQL.find_delivery, (reader, message_id, sender)).fetchone()
        if found is None:
            return None
        id_, seq, state, was_stored, opened_at_ns, from_ = found
        return Row(id_, seq, state, bool(was_stored), opened_at_ns, from_)

    def message_ids(self, seqs: Sequence[int]) -> list[bytes]:
        if not seqs:
            return []
        return [message_id for (message_id,) in self._db.execute(SQL.message_ids, (_ints(seqs),))]

    def sweep(self, before_ns: int, limit: int) -> int:
        ended = self._seqs(SQL.emptiable, (limit,))
        if ended:
            self._db.execute(SQL.empty, (_ints(ended),))
        over = self._seqs(SQL.over, (before_ns, limit))
        if over:
            self._db.execute(SQL.delete_deliveries, (_ints(over),))
            self._db.execute(SQL.delete_envelopes, (_ints(over),))
        return len(ended) + len(over)

    def _seqs(self, statement: str, bindings: tuple[Any, ...]) -> list[int]:
        return [seq for (seq,) in self._db.execute(statement, bindings)]


def _ints(values: Sequence[int]) -> Any:
    """Return integers as a value that a statement can read as a table."""
    return apsw.carray(array("q", values))
