"""Auditing store files directly, in this process: for tests, fault campaigns and the driver's own look at a store.

Reads through apsw, so it belongs to processes that are no Spark workers. Besides the rules of the audit, which look at
the journal alone, a relay's own rules are run here: they compare its tables with its journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posthouse.journal.marker import refuse_half_restored
from posthouse.journal.verify import verify_store
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.line import EpochRow
from posthouse.pipeline.audit.local import ContentRow, Histories, JournalRow, audit_histories
from posthouse.sqlite.connection import open_reader
from posthouse.sqlite.presence import looking

if TYPE_CHECKING:
    import apsw

KINDS = ("relay", "bus", "outbox", "inbox")
_JOURNAL = "SELECT seq, at_ns, type, mesh, actor, ref, body FROM feed_journal_v1 ORDER BY seq"
_EVENTS = "SELECT seq, at_ns, id, pubkey, kind, created_at_ns, event FROM feed_events_v1 ORDER BY seq"
_EPOCHS = "SELECT epoch, parent_epoch, fork_seq, started_at_ns FROM epochs ORDER BY number"


def audit_stores(*paths: Path) -> list[Finding]:
    """Return what is wrong with some stores: each by its own rules, and all of them together by those of the audit."""
    findings = [finding for path in paths for finding in check_store(path)]
    return findings + audit_histories(read_stores(paths))


def kind_of(path: Path) -> str:
    """Return relay, bus, outbox or inbox; `journal` for a store that is nothing but one."""
    kind: str = _read(path, _kind)
    return kind


def check_store(path: Path) -> list[Finding]:
    """Return what a store's own check finds."""
    kind = kind_of(path)
    rules: tuple[Any, ...] = ()
    if kind == "relay":
        from posthouse.relay.store.sqlite.check import RULES

        rules = RULES
    return [Finding("store_damaged", kind, "", path.name, 0, detail) for detail in verify_store(path, rules)]


def read_stores(paths: Iterable[Path]) -> Histories:
    """Read the whole journal of some stores, each in one snapshot."""
    found = [_read(path, _histories) for path in paths]
    return Histories(
        [epoch for each in found for epoch in each.epochs],
        [row for each in found for row in each.journal],
        [row for each in found for row in each.events],
    )


def _read(path: Path, read: Any) -> Any:
    with looking(path):
        refuse_half_restored(path)
        db = open_reader(path)
        try:
            db.execute("BEGIN")
            return read(db)
        finally:
            db.close()


def _kind(db: apsw.Connection) -> str:
    components = {name for (name,) in db.execute("SELECT component FROM schema_versions")}
    return next((kind for kind in KINDS if kind in components), "journal")


def _histories(db: apsw.Connection) -> Histories:
    kind = _kind(db)
    rows: Any = list(db.execute(_EPOCHS))
    epochs = [EpochRow(name, parent, fork_seq, kind, at_ns) for name, parent, fork_seq, at_ns in rows]
    owner = _Owner(epochs)
    journal = [JournalRow(owner.of(row[0]), *row) for row in _rows(db, _JOURNAL)]
    events = [ContentRow(owner.of(row[0]), *row) for row in _rows(db, _EVENTS)] if kind == "relay" else []
    return Histories(epochs, journal, events)


def _rows(db: apsw.Connection, text: str) -> Iterator[Any]:
    yield from db.execute(text)


class _Owner:
    """Tells which epoch wrote a row: the last one that began below it."""

    def __init__(self, epochs: list[EpochRow]) -> None:
        self._epochs = list(reversed(epochs))

    def of(self, seq: int) -> str:
        return next((each.epoch for each in self._epochs if each.fork_seq < seq), self._epochs[-1].epoch)
