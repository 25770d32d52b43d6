"""Confirmations: each accepted one is followed by the record of what it closed, and both name the same messages."""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.model.node import PINCH_MESH
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step


def _scatter(entry: Entry) -> Iterator[Part]:
    ids = sorted(entry.body["ids"])
    if entry.type == "confirmation.accepted":
        yield entry.ref, ["accepted", entry.mesh, entry.actor, ids]
    elif entry.mesh != PINCH_MESH:
        yield entry.body["confirmation"], ["closed", entry.mesh, entry.ref, ids]


class ConfirmationAuditor(Auditor):
    """The two records of one confirmation."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._steps: dict[str, Step] = {}

    def take(self, step: Step) -> Iterator[Finding]:
        kind = step.part[0]
        if kind in self._steps:
            yield self.found("confirmation_disagrees", step, self.key, f"it is {kind} a second time")
        self._steps[kind] = step

    def end(self) -> Iterator[Finding]:
        if not self._steps:
            return  # both lie before the snapshot that the history starts from
        accepted, closed = self._steps.get("accepted"), self._steps.get("closed")
        if not self._steps:
            return  # it lies before the snapshot that replay starts from
        if accepted is None or closed is None:
            there = next(iter(self._steps.values()))
            if closed is None and there.seq == self.line.head:
                return  # its other half is the next record, which was not read yet
            missing = "no record of what it closed" if closed is None else "the confirmation itself is not there"
            yield self.found("confirmation_disagrees", there, self.key, missing)
        elif accepted.part[1:] != closed.part[1:]:
            yield self.found("confirmation_disagrees", closed, self.key, "it closed something else than it named")


RULE = Rule("confirmations", frozenset({"confirmation.accepted", "delivery.confirmed"}), _scatter, ConfirmationAuditor)
