"""Confirmations: each accepted one has a record of the deliveries that it closed; both name the same messages."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from posthouse.model.node import PINCH_MESH
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step


class ConfirmationFact(msgspec.Struct, array_like=True):
    """One of the two records of a confirmation: `accepted` or `closed`."""

    kind: str
    mesh: str
    reader: str
    ids: list[str]


def _scatter(entry: Entry) -> Iterator[KeyedFact]:
    ids = sorted(entry.body["ids"])
    if entry.type == "confirmation.accepted":
        yield entry.ref, ConfirmationFact("accepted", entry.mesh, entry.actor, ids)
    elif entry.mesh != PINCH_MESH:
        yield entry.body["confirmation"], ConfirmationFact("closed", entry.mesh, entry.ref, ids)


class ConfirmationAuditor(Auditor):
    """Compare the two records of one confirmation."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._steps: dict[str, Step] = {}

    def add_step(self, step: Step) -> Iterator[Finding]:
        kind = step.fact.kind
        if kind in self._steps:
            yield self.finding("confirmation_disagrees", step, self.key, f"it was {kind} a second time")
        self._steps[kind] = step

    def finish(self) -> Iterator[Finding]:
        if not self._steps:
            return  # both records precede the snapshot that replay starts from
        accepted, closed = self._steps.get("accepted"), self._steps.get("closed")
        if accepted is None or closed is None:
            only = next(iter(self._steps.values()))
            if closed is None and only.seq == self.lineage.head:
                return  # the second record is the next one, which is not available yet
            missing = "no record of the closed deliveries" if closed is None else "the confirmation itself is missing"
            yield self.finding("confirmation_disagrees", only, self.key, missing)
        elif _named(accepted.fact) != _named(closed.fact):
            yield self.finding("confirmation_disagrees", closed, self.key, "it closed other messages than it named")


def _named(fact: ConfirmationFact) -> tuple[str, str, list[str]]:
    return fact.mesh, fact.reader, fact.ids


RULE = Rule(
    "confirmations",
    frozenset({"confirmation.accepted", "delivery.confirmed"}),
    ConfirmationFact,
    _scatter,
    ConfirmationAuditor,
)
