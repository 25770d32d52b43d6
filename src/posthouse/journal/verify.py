"""Checking a store: the database's own integrity, then the rules every journal keeps.

Stores add their own rules on top; a finding is a sentence. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from posthouse.journal.append import SQL
from posthouse.journal.records import TYPES
from posthouse.sqlite.connection import open_reader

Rule = Callable[[apsw.Connection], Iterator[str]]


def verify_store(path: Path, rules: tuple[Rule, ...] = ()) -> list[str]:
    """Return what is wrong with the store at `path`; an empty list means nothing is."""
    db = open_reader(path)
    try:
        findings = list(_integrity(db))
        if findings:  # the rules would only trip over the same damage
            return findings
        for rule in (_sequence, _time, _types, _epochs, *rules):
            findings.extend(rule(db))
        return findings
    except apsw.CorruptError as exc:
        return [f"the database is damaged: {exc}"]
    finally:
        db.close()


def _integrity(db: apsw.Connection) -> Iterator[str]:
    for (text,) in db.execute("PRAGMA integrity_check(20)"):
        if text != "ok":
            yield f"integrity: {text}"
    for row in db.execute("PRAGMA foreign_key_check"):
        yield f"foreign key: a row of {row[0]} points to a missing row of {row[2]}"


def _sequence(db: apsw.Connection) -> Iterator[str]:
    head = db.execute(SQL.head).get
    pruned_through, snapshot_seq, body_bytes = db.execute(SQL.state).fetchone() or (0, None, 0)
    rows, oldest, newest, actual_bytes = db.execute(SQL.count_rows).fetchone() or (0, 0, 0, 0)
    if (gap := db.execute(SQL.first_gap).get) is not None:
        yield f"journal: there is a gap before seq {gap}"
    if newest != head and rows:
        yield f"journal: the newest record is {newest}, the head is {head}"
    if rows != head - pruned_through:
        yield f"journal: {rows} records, but seqs {pruned_through + 1}..{head} should be there"
    if rows and oldest != pruned_through + 1:
        yield f"journal: the oldest record is {oldest}, the horizon is {pruned_through}"
    if pruned_through and snapshot_seq is None:
        yield "journal: pruned without a snapshot"
    if body_bytes != actual_bytes:
        yield f"journal: counts {body_bytes} bytes of bodies, {actual_bytes} are there"


def _time(db: apsw.Connection) -> Iterator[str]:
    if (seq := db.execute(SQL.time_going_back).get) is not None:
        yield f"journal: time goes back at seq {seq}"


def _types(db: apsw.Connection) -> Iterator[str]:
    for (name,) in db.execute("SELECT DISTINCT type FROM journal"):
        if name not in TYPES:
            yield f"journal: records of the unknown type {name!r}"


def _epochs(db: apsw.Connection) -> Iterator[str]:
    known: dict[str, int] = {}
    for epoch, parent, fork_seq, _started in db.execute(SQL.all_epochs):
        if parent is not None and parent not in known:
            yield f"epochs: {epoch} forks from the unknown epoch {parent}"
        if known and fork_seq < max(known.values()):
            yield f"epochs: {epoch} forks at {fork_seq}, before an earlier fork"
        known[epoch] = fork_seq
    if not known:
        yield "epochs: the store has none"
