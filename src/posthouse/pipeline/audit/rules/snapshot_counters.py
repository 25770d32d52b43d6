"""Counters: what a snapshot counts in a mailbox is what its history leads to, no more and no less.

Looked at only where there are snapshots. The key is a mailbox; only what is open or parked is remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step
from posthouse.pipeline.audit.rules.delivery_lifecycle import OPEN, PARKED, TYPES, delivery_steps


def _scatter(entry: Entry) -> Iterator[Part]:
    for mesh, reader, id_, part in delivery_steps(entry):
        if part[0] not in ("claim", "sent"):
            yield f"{mesh}\x1f{reader}", [id_, *part]
    if entry.type == "journal.snapshot":
        for row in entry.body["state"].get("deliveries", {}).get("counters", ()):
            yield f"{row['mesh']}\x1f{row['node']}", ["", "count", row["open"], row["parked"]]


class CounterAuditor(Auditor):
    """What is open and parked in one mailbox."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._states: dict[str, str] = {}

    def take(self, step: Step) -> Iterator[Finding]:
        id_, kind, *told = step.part
        if kind == "count":
            yield from self._compare(step, told[0], told[1])
            return
        state = "queued" if kind == "requeued" else str(told[0])
        if state in OPEN or state in PARKED:
            self._states[id_] = state
        else:
            self._states.pop(id_, None)

    def _compare(self, step: Step, opened: int, parked: int) -> Iterator[Finding]:
        counts = Counter(state in PARKED for state in self._states.values())
        if (counts[False], counts[True]) != (opened, parked):
            mesh, node = self.key.split("\x1f")
            detail = (
                f"{node} in {mesh} has {opened} open and {parked} parked, history {counts[False]} and {counts[True]}"
            )
            yield self.found("snapshot_disagrees", step, node, detail)


RULE = Rule("counters", TYPES, _scatter, CounterAuditor, needs_snapshot=True)
