"""Replaying the journal: from its last snapshot on, the records of locks give the table of locks.

Pure: records in, rows out; whoever has a journal can do it, and `check_locks` tells where a table differs. The start
of a run re-opens what was not released and adds the leap after a restore, exactly as it did in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from posthouse.journal.record import Record
from posthouse.model.lease import LockRow, reopen
from posthouse.relay.locks.table import SQL, all_locks

Key = tuple[str, str]
Table = dict[Key, LockRow]


def replay(records: Iterable[Record], snapshot: Sequence[Mapping[str, Any]] = ()) -> Table:
    """Return the locks after these records, begun with those of a snapshot."""
    table: Table = {(held["mesh"], held["resource"]): _from_snapshot(held) for held in snapshot}
    for record in records:
        body = record.decoded_body()
        if record.type == "lock.run_started":
            _start_run(table, body)
        else:
            key = (record.mesh or "", record.ref or "")
            table[key] = _after(record.type, table.get(key), key[1], body)
    return table


def check_locks(db: apsw.Connection) -> Iterator[str]:
    """Yield where the table of locks is not what its journal says; a rule of `relay verify` and `relay check`."""
    found = {(entry.mesh, entry.row.resource): entry.row for entry in all_locks(db)}
    told = replay_store(db)
    for key in sorted(found.keys() | told.keys()):
        if found.get(key) != told.get(key):
            yield f"locks: {key[1]!r} of the mesh {key[0]} is {found.get(key)}, its journal says {told.get(key)}"


def replay_store(db: apsw.Connection) -> Table:
    """Return the locks as the journal of a store tells them."""
    snapshot_seq, snapshot = _last_snapshot(db)
    return replay((Record(*row) for row in db.execute(SQL.lock_history, (snapshot_seq,))), snapshot)


def _last_snapshot(db: apsw.Connection) -> tuple[int, Sequence[Mapping[str, Any]]]:
    found = db.execute(SQL.snapshot).fetchone()
    if found is None:
        return 0, ()
    seq, body = found
    return seq, msgspec.json.decode(body)["state"].get("locks", ())


def _start_run(table: Table, body: Mapping[str, Any]) -> None:
    leap, boot_ns = body.get("token_leap", 0), body["boot_ns"]
    for key, row in table.items():
        table[key] = reopen(replace(row, token=row.token + leap), boot_ns)


def _after(kind: str, row: LockRow | None, resource: str, body: Mapping[str, Any]) -> LockRow:
    if kind == "lock.released":
        if row is None:
            raise ValueError(f"{resource!r} was released before it was acquired")
        return replace(row, is_released=True)
    return LockRow(resource, body["owner"], body["token"], body["lease_ms"], body["deadline_boot_ns"])


def _from_snapshot(held: Mapping[str, Any]) -> LockRow:
    return LockRow(**{name: value for name, value in held.items() if name != "mesh"})
