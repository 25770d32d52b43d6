"""Operations on a relay's store from outside the relay: check, back up, restore, reindex.

Check and backup work on a running store and change nothing; restore refuses while the store is open. The rules
compare records with events one to one, columns and indexes with the events' JSON, and the tables of meshes and locks
with a replay of the journal. Signatures are not verified again: the id covers what was signed.
If you add a rule: 1. RULES, 2. a planted violation in tests/relay/ops/test_maintenance.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from posthouse.journal.append import SQL as JOURNAL_SQL
from posthouse.journal.digest import Record
from posthouse.journal.restore import rebuild_store, restore_in_place, restore_store
from posthouse.journal.store import JOURNAL
from posthouse.journal.verify import Damage, Rule, find_damage, verify_store
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.event import DELETION, decode_event, event_id
from posthouse.model.lease import LockRow, first_counter, reopen
from posthouse.model.lease_table import LeaseTable, lease_from_record
from posthouse.relay.meshes.mesh_replay import check_meshes
from posthouse.relay.messages.consistency import DELIVERY_RULES, PINCH_RULES
from posthouse.relay.store.event_rows import event_address, event_row, event_terms
from posthouse.relay.store.high_water import HighWater, MarkFile
from posthouse.relay.store.sqlite.event_index import reindex
from posthouse.relay.store.sqlite.lock_requests import LOCKS_SQL
from posthouse.relay.store.sqlite.meshes_and_locks import MESHES_SQL, all_locks, last_token
from posthouse.relay.store.sqlite.queries import EVENTS_SQL
from posthouse.relay.store.sqlite.store import COMPONENTS, DERIVED, stored_extent
from posthouse.sqlite.backup import backup_store
from posthouse.sqlite.connection import open_reader
from posthouse.sqlite.store_lock import shared_store_lock
from posthouse.storage.sql_files import Statements

#: mesh -> its leases
LockTables = dict[str, LeaseTable]


def replay_locks(records: Iterable[Record], snapshot: Sequence[Mapping[str, Any]] = ()) -> LockTables:
    """Return the locks after these records, starting from those of a snapshot."""
    tables: LockTables = defaultdict(LeaseTable)
    for held in snapshot:
        tables[held["mesh"]].put(LockRow(**{name: value for name, value in held.items() if name != "mesh"}))
    for record in records:
        body = record.decoded_body()
        if record.type == "lock.run_started":
            _start_run(tables, body)
        else:
            _replay(tables[record.mesh or ""], record.type, record.ref or "", body)
    return tables


def _replay(table: LeaseTable, kind: str, resource: str, body: Mapping[str, Any]) -> None:
    if kind in ("lock.released", "lock.expired", "lock.broken"):
        if table.end(resource, body["owner"], body.get("session", "")) is None:
            raise ValueError(f"{resource!r} ended before it was acquired")
    elif kind == "lock.renewed":
        table.put(lease_from_record(resource, body))
    else:
        if kind == "lock.taken_over":
            table.end(resource, body["former_owner"], body.get("former_session", ""))
        table.grant(lease_from_record(resource, body))


def _start_run(tables: LockTables, body: Mapping[str, Any]) -> None:
    leap, over_before_ns, void_token = (body.get(name, 0) for name in ("token_leap", "over_before_ns", "void_token"))
    for table in tables.values():
        for row in table:
            raised = replace(row, token=row.token + leap)
            table.put(reopen(raised, body["boot_ns"], over_before_ns, void_token))


def check_locks(db: apsw.Connection) -> Iterator[str]:
    """Compare the table of locks with a replay of the journal."""
    found = {_lock_key(entry.mesh, entry.row): entry.row for entry in all_locks(db)}
    expected = {_lock_key(mesh, row): row for mesh, table in replay_store_locks(db).items() for row in table}
    for key in sorted(found.keys() | expected.keys()):
        if found.get(key) != expected.get(key):
            yield f"locks: {key[1]!r} in mesh {key[0]} is {found.get(key)}, but the journal says {expected.get(key)}"


def _lock_key(mesh: str, row: LockRow) -> tuple[str, str, str, str]:
    return mesh, row.resource, row.owner, row.session


def check_token_counter(db: apsw.Connection) -> Iterator[str]:
    """Compare the counter of fencing tokens with the journal: a counter that went back would grant a token twice."""
    snapshot_seq, state = _last_snapshot(db)
    granted = max(state.get("token_counter", 0), db.execute(LOCKS_SQL.journal_counter, (snapshot_seq,)).get or 0)
    if (counter := last_token(db)) < granted:
        yield f"locks: the counter of tokens is {counter}, but the journal says {granted}"


def replay_store_locks(db: apsw.Connection) -> LockTables:
    """Return the locks of a store by replaying its journal."""
    snapshot_seq, state = _last_snapshot(db)
    history = (Record(*row) for row in db.execute(LOCKS_SQL.lock_history, (snapshot_seq,)))
    return replay_locks(history, state.get("locks", ()))


def _last_snapshot(db: apsw.Connection) -> tuple[int, Mapping[str, Any]]:
    found = db.execute(LOCKS_SQL.snapshot).fetchone()
    if found is None:
        return 0, {}
    seq, body = found
    return seq, msgspec.json.decode(body)["state"]


EVENTS_CHECK_SQL = Statements("posthouse.relay.store.sqlite.schema.events", "check.sql")


def check_records(db: apsw.Connection) -> Iterator[str]:
    """Compare the journal's records of events with the events."""
    for (seq,) in db.execute(EVENTS_CHECK_SQL.records_without_event):
        yield f"events: the record {seq} has no event"
    for (seq,) in db.execute(EVENTS_CHECK_SQL.events_without_record):
        yield f"events: the event {seq} has no record"
    for (seq,) in db.execute(EVENTS_CHECK_SQL.events_twice):
        yield f"events: the event {seq} has the id of an earlier event"


def check_contents(db: apsw.Connection) -> Iterator[str]:
    """Compare ids, columns and index terms of all events with their JSON."""
    expected = _Digest()
    indexed_through: int = db.execute(EVENTS_SQL.indexed_through).get
    for row in db.execute(EVENTS_CHECK_SQL.contents):
        seq, *columns, raw = row
        try:
            yield from _compare(seq, tuple(columns), raw, expected if seq <= indexed_through else _Digest())
        except PosthouseError as fault:
            yield f"events: the content of {seq} cannot be read: {fault}"
    actual = _Digest()
    for term, seq in db.execute(EVENTS_CHECK_SQL.all_terms):
        actual.add(term, seq)
    if actual != expected:
        yield f"terms: the index has {actual.count} entries, the events give {expected.count}; reindex repairs it"


def check_ids(db: apsw.Connection) -> Iterator[str]:
    """Compare the index of ids with the events."""
    for (seq,) in db.execute(EVENTS_CHECK_SQL.id_differences):
        yield f"ids: the index and the id of {seq} differ; reindex repairs it"


def check_current(db: apsw.Connection) -> Iterator[str]:
    """Compare the index of current events with the events."""
    for (seq,) in db.execute(EVENTS_CHECK_SQL.current_without_event):
        yield f"current: the index names {seq}, but no event matches its entry; reindex repairs it"
    for (seq,) in db.execute(EVENTS_CHECK_SQL.events_above_current):
        yield f"current: {seq} is newer than the event that the index names; reindex repairs it"


def check_fenced(db: apsw.Connection) -> Iterator[str]:
    """Compare the index of fenced events with the events."""
    for (seq,) in db.execute(EVENTS_CHECK_SQL.fenced_differences):
        yield f"fences: the index and the fence tag of {seq} differ; reindex repairs it"


def check_deleted(db: apsw.Connection) -> Iterator[str]:
    """Compare what deletions named with the events."""
    for (seq,) in db.execute(EVENTS_CHECK_SQL.deleted_with_content):
        yield f"deletions: {seq} still has its content, although a deletion names it"
    for (seq,) in db.execute(EVENTS_CHECK_SQL.erased_without_mark):
        yield f"deletions: the journal says that {seq} is erased, but its row does not"


def check_usage(db: apsw.Connection) -> Iterator[str]:
    """Compare the counters of meshes with the events."""
    for (mesh,) in db.execute(EVENTS_CHECK_SQL.wrong_usage):
        yield f"usage: the counters of the mesh {mesh} differ from its events"


def check_kept(db: apsw.Connection) -> Iterator[str]:
    """Compare the list of events that pruning kept with the events."""
    for (seq,) in db.execute(EVENTS_CHECK_SQL.kept_without_content):
        yield f"kept: the list names {seq}, which has no content, expires, or whose record is not pruned"


def _compare(seq: int, columns: tuple[Any, ...], raw: bytes, expected: _Digest) -> Iterator[str]:
    event = decode_event(raw)
    if event_id(event.canonical()) != event.id:
        yield f"events: the content of {seq} does not hash to its id"
    address = event_address(event)
    for term in event_terms(event, event.mesh, address):
        expected.add(term, seq)
    try:
        row = event_row(event, b"")
        recipient = row.recipient
    except PosthouseError as fault:
        if event.kind != DELETION:
            yield f"events: {seq} cannot be read: {fault}"
        return
    if event.kind == DELETION and columns[5] is None:
        recipient = None  # stored before its tags had a meaning
    facts = (event.id, event.pubkey, event.kind, event.created_at_ns, row.mesh, recipient, row.expiration_s, address)
    if columns != facts:
        yield f"events: the columns of {seq} differ from its content"


class _Digest:
    """A digest of a set of entries that does not depend on their order, so the entries need not be held."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0

    def add(self, term: bytes, seq: int) -> None:
        self.count += 1
        self._sum = (self._sum + hash((term, seq))) & 0xFFFF_FFFF_FFFF_FFFF

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Digest) and (self.count, self._sum) == (other.count, other._sum)

    __hash__ = None  # type: ignore[assignment]


RULES: tuple[Rule, ...] = (
    check_records,
    check_contents,
    check_ids,
    check_current,
    check_fenced,
    check_deleted,
    check_usage,
    check_kept,
    check_meshes,
    check_locks,
    check_token_counter,
    *DELIVERY_RULES,
    *PINCH_RULES,
)


_REINDEX = "everything that is damaged can be rebuilt: stop the relay and run `posthouse relay reindex`"
_SALVAGE = "restore the newest backup that verifies, or save what is readable with `posthouse relay export`"


def check_relay(path: Path) -> list[str]:
    """Return findings about a relay's store; an empty list means that it is consistent."""
    return verify_store(path, RULES)


def backup_relay(path: Path, target: Path) -> None:
    """Copy the store of a relay, running or not, to a new file."""
    backup_store(path, target)


def restore_relay(backup: Path | None, path: Path, clock: Clock, mark_file: MarkFile | None = None) -> str:
    """Replace a relay's store with a backup, or continue from the existing file (None); return the new epoch."""
    known = 0 if mark_file is None else marked_counter(mark_file)
    components = (JOURNAL, *COMPONENTS)
    if backup is None:
        epoch = restore_in_place(path, components, clock, lambda db: adjust_restored(db, clock, known))
    else:
        epoch = restore_store(
            backup, path, components, clock, lambda db: adjust_restored(db, clock, max(known, _counter_of(path)))
        )
    if mark_file is not None:
        write_mark(mark_file, path, clock)
    return epoch


def reindex_relay(path: Path) -> None:
    """Rewrite a relay's store, with everything that is derived from its events, and replace the file."""
    rebuild_store(path, (JOURNAL, *COMPONENTS), DERIVED, reindex)


def check_rules(path: Path) -> list[str]:
    """Return the violations of the relay's rules in a store, or the damage of its file."""
    with shared_store_lock(path):
        db = open_reader(path)
        try:
            db.execute("BEGIN")
            if damage := list(find_damage(db)):
                return describe_damage(damage)
            return [finding for rule in RULES for finding in rule(db)]
        finally:
            db.close()


def describe_damage(found: Sequence[Damage]) -> list[str]:
    """Return the damage as findings, with a last one that says what to do."""
    is_derived = all(each.index is not None or each.table in DERIVED for each in found)
    return [*map(str, found), _REINDEX if is_derived else _SALVAGE]


def adjust_restored(db: apsw.Connection, clock: Clock, known_counter: int = 0) -> None:
    """Void the invites of a backup, and raise the counter of tokens above those that the lost history granted.

    A relay can start on a moved store again, because it has its own epoch now.

    An invite that was used after the backup must not work a second time. `known_counter` comes from the store that is
    replaced, or from its high-water mark.
    """
    db.execute(MESHES_SQL.void_invites)
    db.execute(EVENTS_SQL.clear_moved)
    newest_ns: int = db.execute(JOURNAL_SQL.newest_at_ns).get
    counter = first_counter(max(last_token(db), known_counter), max(clock.wall_ns(), newest_ns))
    db.execute(LOCKS_SQL.raise_counter, (counter,))


def marked_counter(mark_file: MarkFile) -> int:
    """Return a bound of the tokens that the store of a mark has granted; 0 if there is no readable mark."""
    try:
        mark = mark_file.read()
    except PosthouseError:  # a damaged mark must not stop the restore, which replaces it
        return 0
    return 0 if mark is None else mark.token_bound


def write_mark(mark_file: MarkFile, path: Path, clock: Clock) -> None:
    """Write a mark for the restored store: a start would refuse it because of the mark of the lost one."""
    extent = stored_extent(path)
    assert extent is not None
    mark_file.write(HighWater(extent.epoch, extent.head, _counter_of(path), clock.boot_id, clock.boot_ns()))


def _counter_of(path: Path) -> int:
    """Return the counter of tokens of a store that may be missing, damaged or old; 0 if it cannot be read."""
    try:
        db = open_reader(path)
    except PosthouseError:
        return 0
    try:
        return last_token(db)
    except apsw.Error:
        return 0
    finally:
        db.close()
