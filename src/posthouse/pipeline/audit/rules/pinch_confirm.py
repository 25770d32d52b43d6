"""Pinch: a confirm names an envelope that its sender sent to its reader. Signatures are checked record by record."""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step


def _scatter(entry: Entry) -> Iterator[Part]:
    if entry.type == "pinch.accepted":
        yield f"{entry.actor}\x1f{entry.body['recipient']}\x1f{entry.ref}", ["accepted"]
    else:
        yield f"{entry.body['sender']}\x1f{entry.actor}\x1f{entry.ref}", ["confirmed"]


class EnvelopeAuditor(Auditor):
    """One envelope from a sender to a reader."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._is_there = False

    def take(self, step: Step) -> Iterator[Finding]:
        if step.part[0] == "accepted":
            self._is_there = True
        elif not self._is_there and self.line.is_complete:
            sender, reader, id_ = self.key.split("\x1f")
            yield self.found("pinch_unknown", step, id_, f"{reader} confirmed what {sender} never sent")


RULE = Rule("pinch", frozenset({"pinch.accepted", "pinch.confirmed"}), _scatter, EnvelopeAuditor)
