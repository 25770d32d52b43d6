"""Appending to the journal inside the transaction that changes what the record describes.

seq is given out here, from the head this transaction holds, in commit order and without gaps: an item that fails
gives its numbers back, and when another process has committed meanwhile the head is read anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw
import msgspec

from posthouse.journal.records import TYPES
from posthouse.sqlite.bulk import BulkInsert
from posthouse.sqlite.statements import Statements
from posthouse.sqlite.transaction import Transaction

SQL = Statements("posthouse.journal", "journal.sql")
_APPEND = SQL.append
_APPEND_MANY = BulkInsert(SQL.append.rpartition("(")[0], 7)
_encode = msgspec.json.Encoder().encode


class JournalTransaction(Transaction):
    """A transaction that can append facts to the store's journal."""

    def __init__(self, db: apsw.Connection) -> None:
        super().__init__(db)
        self._head = 0
        self._new_bytes = 0
        self._data_version = -1

    @property
    def head(self) -> int:
        """The seq of the newest record, those of this transaction included."""
        return self._head

    def begin(self, wall_ns: int) -> None:
        version = self.db.pragma("data_version")
        if version != self._data_version:
            self._head = self.db.execute(SQL.head).get
            self.now_ns = max(self.now_ns, self.db.execute(SQL.newest_at_ns).get)
            self._data_version = version
        super().begin(wall_ns)

    def append(
        self,
        type: str,  # noqa: A002 - the journal's word
        *,
        mesh: str | None = None,
        actor: str | None = None,
        ref: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> int:
        """Append one record and return its seq."""
        declared = TYPES[type].body
        if body is None:
            text, size = "{}", 2
        else:
            if not body.keys() <= declared.keys():
                raise ValueError(f"{type} has no body fields {sorted(body.keys() - declared.keys())}")
            encoded = _encode(body)
            text, size = encoded.decode(), len(encoded)
        seq = self._head + 1
        self.db.execute(_APPEND, (seq, self.now_ns, type, mesh, actor, ref, text))
        self._head = seq
        self._new_bytes += size
        return seq

    def append_many(self, records: Sequence[tuple[str, str | None, str | None, str | None, str]]) -> int:
        """Append (type, mesh, actor, ref, body as JSON text) in order and return the seq of the first.

        For the hot path: the caller answers for types and bodies being as they are declared.
        """
        first, now_ns = self._head + 1, self.now_ns
        rows = [(seq, now_ns, *record) for seq, record in enumerate(records, start=first)]
        _APPEND_MANY.run(self.db, rows)
        self._head += len(rows)
        self._new_bytes += sum(len(row[6]) for row in rows)
        return first

    def mark(self) -> tuple[int, int]:
        return self._head, self._new_bytes

    def rewind(self, mark: tuple[int, int]) -> None:
        self._head, self._new_bytes = mark

    def before_commit(self) -> None:
        if self._new_bytes:
            self.db.execute(SQL.add_bytes, (self._new_bytes,))
            self._new_bytes = 0

    def rolled_back(self) -> None:
        self._data_version = -1
        self._new_bytes = 0
