"""The outbox: a row is queued once and ends once; a row that was replaced names its only successor, which must exist.

A dead row may still be aborted. Rows that were queued before the available history are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

_KINDS = ("queued", "inflight", "deferred", "done", "dead", "aborted")
TYPES = frozenset({f"outbox.{kind}" for kind in _KINDS} | {"journal.snapshot"})
#: Kind of record -> the states that allow it.
_AFTER = {
    "inflight": frozenset({"pending"}),
    "deferred": frozenset({"pending"}),
    "done": frozenset({"pending", "dead"}),
    "dead": frozenset({"pending"}),
    "aborted": frozenset({"pending", "dead"}),
    "reopened": frozenset({"done"}),
}


class RowRecord(msgspec.Struct, array_like=True, tag="record"):
    """A record of the row: the record type without `outbox.`."""

    kind: str


class SnapshotStatus(msgspec.Struct, array_like=True, tag="snapshot"):
    """A snapshot states this status."""

    status: str


class Succession(msgspec.Struct, array_like=True, tag="succession"):
    """Another row names the row of the key as its successor."""

    predecessor_id: str


def _by_row(entry: Entry) -> Iterator[KeyedFact]:
    if entry.type == "journal.snapshot":
        for row in entry.body["state"].get("outbox", {}).get("rows", ()):
            yield row["id"], SnapshotStatus(row["status"])
        return
    kind = entry.type.partition(".")[2]
    for row_id in entry.body["ids"] if kind in ("inflight", "reopened") else (entry.ref,):
        yield row_id, RowRecord(kind)
    if (successor := entry.body.get("superseded_by")) is not None:
        yield successor, Succession(entry.ref)


def _by_client_id(entry: Entry) -> Iterator[KeyedFact]:
    yield f"{entry.body.get('from_agent', '')}\x1f{entry.body['client_message_id']}", entry.ref


class OutboxRowAuditor(Auditor):
    """Check one row of an outbox."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._state: str | None = None
        self._succession: Step | None = None

    def add_step(self, step: Step) -> Iterator[Finding]:
        match step.fact:
            case Succession(predecessor_id):
                yield from self._succeed(step, predecessor_id)
            case SnapshotStatus(status):
                self._state = "pending" if status == "inflight" else status
            case RowRecord(kind):
                yield from self._change(step, kind)

    def _change(self, step: Step, kind: str) -> Iterator[Finding]:
        if kind == "queued":
            if self._state is not None:
                yield self.finding("outbox_outcome_twice", step, self.key, f"queued, but it was {self._state}")
            self._state = "pending"
        elif self._state is None:
            if self.lineage.is_complete:
                yield self.finding("outbox_unknown", step, self.key, f"{kind}, but it was never queued")
        elif self._state not in _AFTER[kind]:
            yield self.finding("outbox_outcome_twice", step, self.key, f"{kind}, but it was {self._state}")
        if kind in ("done", "dead", "aborted"):
            self._state = kind
        elif kind == "reopened":
            self._state = "pending"

    def _succeed(self, step: Step, predecessor_id: str) -> Iterator[Finding]:
        if self._succession is not None:
            detail = f"it succeeds {predecessor_id} and {self._succession.fact.predecessor_id}"
            yield self.finding("chain_broken", step, self.key, detail)
        if self._state is not None:
            detail = f"it existed before {predecessor_id} named it as its successor"
            yield self.finding("chain_broken", step, self.key, detail)
        self._succession = step

    def finish(self) -> Iterator[Finding]:
        if self._succession is not None and self._state is None and self._succession.seq != self.lineage.head:
            detail = f"{self._succession.fact.predecessor_id} names it as its successor, but it does not exist"
            yield self.finding("chain_broken", self._succession, self.key, detail)


class OutboxClientIdAuditor(Auditor):
    """Check one client_message_id of an outbox; facts are row ids."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._row_id: str | None = None

    def add_step(self, step: Step) -> Iterator[Finding]:
        if self._row_id is not None:
            client_id = self.key.rpartition("\x1f")[2]
            yield self.finding("outbox_id_reused", step, step.fact, f"{client_id!r} already names {self._row_id}")
        self._row_id = step.fact


ROWS = Rule("outbox", TYPES, RowRecord | SnapshotStatus | Succession, _by_row, OutboxRowAuditor)
CLIENT_IDS = Rule("outbox_ids", frozenset({"outbox.queued"}), str, _by_client_id, OutboxClientIdAuditor)
