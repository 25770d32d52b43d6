"""Finding one event: by its id, or as the latest of a coordinate.

The latest is the largest (created_at_ns, id) that this reader may see now. The index of current events answers at
once; only when its event has expired, or lies in a mesh the reader may not read, the line itself is looked through.
"""

from __future__ import annotations

import apsw

from posthouse.model.coordinate import Coordinate
from posthouse.relay.store.interface import Scope, StoredEvent
from posthouse.relay.store.sqlite.plan import SQL, scope_bindings
from posthouse.relay.store.terms import address_term

_ONE = f"SELECT e.seq, e.raw FROM events AS e WHERE e.seq = :seq AND {SQL.visible}"
_LARGEST = (
    f"SELECT e.seq, e.raw {SQL.largest_of_address} {SQL.visible} ORDER BY e.created_at_ns DESC, e.id DESC LIMIT 1"
)


def find_event(db: apsw.Connection, event_id: str, scope: Scope, now_ns: int) -> StoredEvent | None:
    """Return the event of an id, if the reader may see it."""
    return _visible(db, db.execute(SQL.event_by_id, (bytes.fromhex(event_id),)).get, scope, now_ns)


def find_current(db: apsw.Connection, coordinate: Coordinate, scope: Scope, now_ns: int) -> StoredEvent | None:
    """Return the latest event of a coordinate that the reader may see."""
    term = address_term(coordinate)
    seq = db.execute(SQL.current_of, (term,)).get
    if seq is None:
        return None
    if found := _visible(db, seq, scope, now_ns):
        return found
    return _stored(db.execute(_LARGEST, scope_bindings(scope, now_ns) | {"term": term}).fetchone())


def _visible(db: apsw.Connection, seq: int | None, scope: Scope, now_ns: int) -> StoredEvent | None:
    if seq is None:
        return None
    return _stored(db.execute(_ONE, scope_bindings(scope, now_ns) | {"seq": seq}).fetchone())


def _stored(row: tuple[int, bytes] | None) -> StoredEvent | None:
    return None if row is None else StoredEvent(*row)
