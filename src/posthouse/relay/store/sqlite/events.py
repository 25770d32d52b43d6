"""Writing events: a group of them in a handful of statements, all derived rows with them."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.model.node import NODE_SCHEME
from posthouse.relay.store.interface import EventRow
from posthouse.relay.store.sqlite.plan import SQL
from posthouse.sqlite.bulk import BulkInsert

INSERT_EVENTS = BulkInsert(SQL.insert_events, 10)
INSERT_TERMS = BulkInsert(SQL.insert_terms, 2)
INSERT_CURRENT = BulkInsert(SQL.insert_current, 4, SQL.keep_larger)
_EVENT_BY_ID = SQL.event_by_id
_KEY_AT = len(NODE_SCHEME) + 1


def add_events(tx: JournalTransaction, rows: Sequence[EventRow]) -> list[int]:
    """Write events that are not known yet, each with its one record, and return their seqs in order."""
    first = tx.append_many(
        [(row.record_type, row.mesh, row.event.pubkey, row.event.id, row.record_body) for row in rows]
    )
    seqs = list(range(first, first + len(rows)))
    events, terms, current = [], [], []
    for seq, row in zip(seqs, rows, strict=True):
        event = row.event
        key = bytes.fromhex(event.id)
        recipient = None if row.recipient is None else bytes.fromhex(row.recipient[_KEY_AT:])
        author = bytes.fromhex(event.pubkey[_KEY_AT:])
        created_at_ns, address = event.created_at_ns, row.address
        events.append(
            (seq, key, author, event.kind, created_at_ns, row.mesh, recipient, row.expiration_s, address, row.raw)
        )
        terms += [(term, seq) for term in row.terms]
        if address is not None:
            current.append((address, created_at_ns, key, seq))
    INSERT_EVENTS.run(tx.db, events)
    INSERT_TERMS.run(tx.db, sorted(terms))  # in the order of the tree: neighbours share their pages
    if current:
        INSERT_CURRENT.run(tx.db, current)
    return seqs


def known_ids(db: apsw.Connection, ids: Sequence[str]) -> dict[str, int]:
    """Return the seq of each of these ids that was accepted before."""
    if len(ids) == 1:
        seq = db.execute(_EVENT_BY_ID, (bytes.fromhex(ids[0]),)).get
        return {} if seq is None else {ids[0]: seq}
    keys = tuple(bytes.fromhex(id_) for id_ in ids)
    return {key.hex(): seq for key, seq in db.execute(SQL.known_ids, (apsw.carray(keys),))} if keys else {}
