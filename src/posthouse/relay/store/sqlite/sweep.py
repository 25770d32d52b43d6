"""Taking the content of events away: expired ones, and those the lake holds.

The row stays without its JSON, so that the id is known for ever and the same signed bytes are never accepted twice;
everything derived from the event goes. When the latest of a line goes, the next larger one becomes
current, exactly as a rebuilt index would say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from posthouse.journal.append import JournalTransaction
from posthouse.model.event import decode_event
from posthouse.model.limits import SECOND_NS
from posthouse.relay.deliver.sqlite import SqliteDeliveries
from posthouse.relay.store.sqlite.plan import SQL
from posthouse.relay.store.terms import event_terms


def sweep_expired(tx: JournalTransaction, limit: int) -> int:
    """Empty up to `limit` events whose expiration has come, and return how many."""
    rows: list[Any] = tx.db.execute(SQL.expired, (tx.now_ns // SECOND_NS, limit)).fetchall()
    if rows:
        SqliteDeliveries(tx).expire_events([seq for seq, _address in rows])
        empty_events(tx.db, rows)
    return len(rows)


def empty_events(db: apsw.Connection, rows: Sequence[tuple[int, bytes | None]]) -> None:
    """Take content and derived rows of events, given as (seq, address), away."""
    terms: list[tuple[bytes, int]] = []
    for seq, address in rows:
        raw, mesh = db.execute(SQL.raw_of, (seq,)).fetchone() or (b"", "")
        terms += [(term, seq) for term in event_terms(decode_event(raw), mesh, address)]
    db.executemany(SQL.remove_term, sorted(terms))  # in the order of the tree, as they were written
    db.executemany(SQL.empty_event, [(seq,) for seq, _ in rows])
    for seq, address in rows:
        if address is not None:
            db.execute(SQL.remove_current, (address, seq))
            db.execute(SQL.next_current, (address,))
