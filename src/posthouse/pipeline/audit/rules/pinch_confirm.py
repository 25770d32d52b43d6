"""Pinch: a confirm names an envelope that its sender sent to its reader. Row checks verify the signatures."""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step


def _scatter(entry: Entry) -> Iterator[KeyedFact]:
    if entry.type == "pinch.accepted":
        yield f"{entry.actor}\x1f{entry.body['recipient']}\x1f{entry.ref}", "accepted"
    else:
        yield f"{entry.body['sender']}\x1f{entry.actor}\x1f{entry.ref}", "confirmed"


class EnvelopeAuditor(Auditor):
    """Check one envelope from a sender to a reader; facts are `accepted` and `confirmed`."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._is_accepted = False

    def add_step(self, step: Step) -> Iterator[Finding]:
        if step.fact == "accepted":
            self._is_accepted = True
        elif not self._is_accepted and self.lineage.is_complete:
            sender, reader, id_ = self.key.split("\x1f")
            yield self.finding("pinch_unknown", step, id_, f"{reader} confirmed it, but {sender} never sent it")


RULE = Rule("pinch", frozenset({"pinch.accepted", "pinch.confirmed"}), str, _scatter, EnvelopeAuditor)
