"""Erase what people and agents wrote from the records of a journal: on request, permanently, leaving a record of it.

An erased record keeps every column; only the body fields that its type declares as content are emptied. In the same
transaction `content.erased` names the records with the digests that they had, so that a Merkle leaf over them can
still be computed. Freed bytes are overwritten and the WAL is emptied, so the text is not left in the file. Only the
journal of a bus has content; a relay keeps its events in a separate table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from posthouse.journal.append import SQL, JournalTransaction
from posthouse.journal.digest import Record, record_digest
from posthouse.journal.records import CONTENT_TYPES, ERASED_PER_RECORD, without_content
from posthouse.journal.store import exit_process
from posthouse.model.clock import Clock
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.store_lock import refuse_half_restored, shared_store_lock
from posthouse.sqlite.transaction import DirectWriter

_TYPES = msgspec.json.encode(CONTENT_TYPES).decode()


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """The content to erase, which must meet all criteria that are not None, and the reason."""

    #: The author: a node id, or on a bus the subject of the sender.
    node: str | None = None
    mesh: str | None = None
    #: An event id, or on a bus a message id.
    id: str | None = None
    before_ns: int | None = None
    reason: str = "erased"

    @property
    def has_criteria(self) -> bool:
        """False if the request would erase everything."""
        return any(each is not None for each in (self.node, self.mesh, self.id, self.before_ns))


def erase_records(path: Path, request: ErasureRequest, actor: str, clock: Clock, *, is_dry_run: bool = False) -> int:
    """Erase the content of records in the store at `path`, which other processes may have open; return their number."""
    with shared_store_lock(path):
        refuse_half_restored(path)
        db = open_writer(path, Durability.FULL)
        writer = DirectWriter(JournalTransaction(db), clock, str(path), on_fatal=exit_process)
        try:
            db.pragma("secure_delete", True)
            erased = 0
            after: int | None = 0
            while after is not None:
                work = partial(_erase_next, request=request, after=after, actor=actor, is_dry_run=is_dry_run)
                after, count = writer.run(work)
                erased += count
            if not is_dry_run:  # even if a killed call erased them: the WAL may still have the text
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return erased
        finally:
            writer.close()


def _erase_next(
    tx: JournalTransaction, request: ErasureRequest, after: int, actor: str, *, is_dry_run: bool
) -> tuple[int | None, int]:
    """Erase the next records after a seq; return the seq to continue after, None at the end, and their number."""
    bindings = {
        "after": after,
        "types": _TYPES,
        "node": request.node,
        "mesh": request.mesh,
        "id": request.id,
        "before_ns": request.before_ns,
        "limit": ERASED_PER_RECORD,
    }
    found = [Record(*row) for row in tx.db.execute(SQL.records_of, bindings)]
    emptied = [record._replace(body=without_content(record.type, record.body)) for record in found]
    changes = [pair for pair in zip(found, emptied, strict=True) if pair[0].body != pair[1].body]
    if changes and not is_dry_run:
        _write(tx, changes, request, actor)
    return (found[-1].seq if found else None), len(changes)


def _write(tx: JournalTransaction, changes: list[tuple[Record, Record]], request: ErasureRequest, actor: str) -> None:
    counted_through = tx.db.execute(SQL.counted_through).get
    counted = [pair for pair in changes if pair[0].seq <= counted_through]
    added = sum(len(now.body.encode()) - len(before.body.encode()) for before, now in counted)
    tx.db.executemany(SQL.set_body, [(now.body, now.seq) for _before, now in changes])
    tx.db.execute(SQL.add_bytes, (added,))
    records = [before for before, _now in changes]
    tx.append(
        "content.erased",
        actor=actor,
        ref="journal",
        body={
            "seqs": [record.seq for record in records],
            "ids": [record.ref for record in records],
            "digests": [record_digest(record).hex() for record in records],
            "reason": request.reason,
        },
    )
