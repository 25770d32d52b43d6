"""The outbox: a row is queued once and ends once; a row that was replaced names its one successor, which is there.

A dead row may still be aborted. What was queued before the history that is left is not known: nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step

_FACTS = ("queued", "inflight", "deferred", "done", "dead", "aborted")
TYPES = frozenset({f"outbox.{fact}" for fact in _FACTS} | {"journal.snapshot"})
#: fact -> the states it may follow
_AFTER = {
    "inflight": frozenset({"pending"}),
    "deferred": frozenset({"pending"}),
    "done": frozenset({"pending"}),
    "dead": frozenset({"pending"}),
    "aborted": frozenset({"pending", "dead"}),
}


def _by_row(entry: Entry) -> Iterator[Part]:
    if entry.type == "journal.snapshot":
        for row in entry.body["state"].get("outbox", {}).get("rows", ()):
            yield row["id"], ["snapshot", row["status"]]
        return
    fact = entry.type.partition(".")[2]
    for row_id in entry.body["ids"] if fact == "inflight" else (entry.ref,):
        yield row_id, [fact]
    if (successor := entry.body.get("superseded_by")) is not None:
        yield successor, ["succeeds", entry.ref]


def _by_client_id(entry: Entry) -> Iterator[Part]:
    yield entry.body["client_message_id"], [entry.ref]


class OutboxRowAuditor(Auditor):
    """One row of an outbox."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._state: str | None = None
        self._predecessor: Step | None = None

    def take(self, step: Step) -> Iterator[Finding]:
        fact = step.part[0]
        if fact == "succeeds":
            yield from self._succeed(step)
        elif fact == "snapshot":
            self._state = {"inflight": "pending"}.get(step.part[1], step.part[1])
        elif fact == "queued":
            if self._state is not None:
                yield self.found("outbox_outcome_twice", step, self.key, f"queued, but it was {self._state}")
            self._state = "pending"
        elif self._state is None:
            if self.line.is_complete:
                yield self.found("outbox_unknown", step, self.key, f"{fact}, but it was never queued")
        elif self._state not in _AFTER[fact]:
            yield self.found("outbox_outcome_twice", step, self.key, f"{fact}, but it was {self._state}")
        if fact in ("done", "dead", "aborted"):
            self._state = fact

    def _succeed(self, step: Step) -> Iterator[Finding]:
        if self._predecessor is not None:
            detail = f"it succeeds {step.part[1]} and {self._predecessor.part[1]}"
            yield self.found("chain_broken", step, self.key, detail)
        if self._state is not None:
            yield self.found("chain_broken", step, self.key, f"it was there before {step.part[1]} named it")
        self._predecessor = step

    def end(self) -> Iterator[Finding]:
        if self._predecessor is not None and self._state is None and self._predecessor.seq != self.line.head:
            detail = f"{self._predecessor.part[1]} names it as its successor, and it is not there"
            yield self.found("chain_broken", self._predecessor, self.key, detail)


class OutboxClientIdAuditor(Auditor):
    """One client_message_id of an outbox."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._row: str | None = None

    def take(self, step: Step) -> Iterator[Finding]:
        if self._row is not None:
            yield self.found("outbox_id_reused", step, step.part[0], f"{self.key!r} is that of {self._row}")
        self._row = step.part[0]


ROWS = Rule("outbox", TYPES, _by_row, OutboxRowAuditor)
CLIENT_IDS = Rule("outbox_ids", frozenset({"outbox.queued"}), _by_client_id, OutboxClientIdAuditor)
