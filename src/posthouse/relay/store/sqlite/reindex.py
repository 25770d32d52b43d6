"""Rebuilding everything that is derived from events, in the transaction of its caller.

The result equals what accepting the same events one by one left behind; a property test compares them.
"""

from __future__ import annotations

from typing import Any

import apsw

from posthouse.model.event import decode_event
from posthouse.relay.store.sqlite.events import INSERT_CURRENT, INSERT_TERMS
from posthouse.relay.store.sqlite.plan import SQL
from posthouse.relay.store.terms import event_address, event_terms

_ROWS_PER_READ = 1_000


def reindex(db: apsw.Connection) -> None:
    """Rebuild the tag index with its address aliases, and the index of current events."""
    db.execute(SQL.clear_terms)
    db.execute(SQL.clear_current)
    seq = 0
    while rows := _rows_after(db, seq):
        _index(db, rows)
        seq = rows[-1][0]


def _rows_after(db: apsw.Connection, seq: int) -> list[Any]:
    return db.execute(SQL.events_after, (seq, _ROWS_PER_READ)).fetchall()


def _index(db: apsw.Connection, rows: list[tuple[int, bytes, str]]) -> None:
    terms, current = [], []
    for seq, raw, mesh in rows:
        event = decode_event(raw)
        address = event_address(event)
        terms += [(term, seq) for term in event_terms(event, mesh, address)]
        if address is not None:
            current.append((address, event.created_at_ns, bytes.fromhex(event.id), seq))
    INSERT_TERMS.run(db, sorted(terms))
    INSERT_CURRENT.run(db, current)
