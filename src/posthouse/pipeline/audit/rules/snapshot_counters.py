"""Counters: the counts that a snapshot states for a reader's queue match the history before it.

The rule applies only to stores that have snapshots. The key is one queue; an auditor remembers only open and parked
deliveries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step
from posthouse.pipeline.audit.rules.delivery_lifecycle import (
    OPEN,
    PARKED,
    TYPES,
    DeliveryFact,
    Ended,
    Opened,
    Requeued,
    SnapshotState,
    delivery_steps,
)


class StateChange(msgspec.Struct, array_like=True, tag="state"):
    """A delivery entered a state."""

    message_id: str
    state: str


class SnapshotCount(msgspec.Struct, array_like=True, tag="count"):
    """A snapshot states these counts."""

    open: int
    parked: int


def _scatter(entry: Entry) -> Iterator[KeyedFact]:
    for mesh, reader, id_, fact in delivery_steps(entry):
        if (state := _new_state(fact)) is not None:
            yield f"{mesh}\x1f{reader}", StateChange(id_, state)
    if entry.type == "journal.snapshot":
        for row in entry.body["state"].get("deliveries", {}).get("counters", ()):
            yield f"{row['mesh']}\x1f{row['node']}", SnapshotCount(row["open"], row["parked"])


def _new_state(fact: DeliveryFact) -> str | None:
    match fact:
        case Opened(state) | SnapshotState(state):
            return state
        case Ended(outcome):
            return outcome
        case Requeued():
            return "queued"
        case _:
            return None


class CounterAuditor(Auditor):
    """Count the open and parked deliveries of one queue."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        #: By message id.
        self._states: dict[str, str] = {}

    def add_step(self, step: Step) -> Iterator[Finding]:
        fact = step.fact
        if isinstance(fact, SnapshotCount):
            yield from self._compare(step, fact)
        elif fact.state in OPEN or fact.state in PARKED:
            self._states[fact.message_id] = fact.state
        else:
            self._states.pop(fact.message_id, None)

    def _compare(self, step: Step, stated: SnapshotCount) -> Iterator[Finding]:
        counts = Counter(state in PARKED for state in self._states.values())
        if (counts[False], counts[True]) != (stated.open, stated.parked):
            mesh, node = self.key.split("\x1f")
            detail = (
                f"for {node} in {mesh} the snapshot states {stated.open} open and {stated.parked} parked, "
                f"the history {counts[False]} and {counts[True]}"
            )
            yield self.finding("snapshot_disagrees", step, node, detail)


RULE = Rule("counters", TYPES, StateChange | SnapshotCount, _scatter, CounterAuditor, needs_snapshot=True)
