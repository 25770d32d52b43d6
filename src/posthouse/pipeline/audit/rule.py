"""The interface of an audit rule: scatter splits a record into facts by key, an auditor checks the facts of one key.

Rules are pure Python: they import neither Spark nor a database. Spark distributes the keys over its workers; a small
history runs the same rules in one process. Rows that a restore dropped reach an auditor only if its rule asks for
them: they happened, but later history does not build on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage

#: A key and a fact of the rule's type.
KeyedFact = tuple[str, Any]


class Entry(NamedTuple):
    """A journal record with a readable body, as rules receive it."""

    store: str
    seq: int
    at_ns: int
    type: str
    mesh: str
    actor: str
    ref: str
    body: dict[str, Any]


class Step(NamedTuple):
    """One fact about a key, with its position in history."""

    epoch: str
    depth: int
    seq: int
    is_lost: bool
    at_ns: int
    fact: Any


class Auditor:
    """Check the steps of one key; a subclass holds the state that it needs between steps."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        self.lineage = lineage
        self.key = key

    def add_step(self, step: Step) -> Iterator[Finding]:
        """Process the next step and yield the findings it proves."""
        raise NotImplementedError

    def finish(self) -> Iterator[Finding]:
        """Yield the findings that only the end of history proves."""
        return iter(())

    def finding(self, code: str, step: Step, ref: str, detail: str) -> Finding:
        """Return a finding located at a step."""
        return Finding(code, self.lineage.store, step.epoch, ref, step.seq, detail)


#: Creates the auditor of a key.
MakeAuditor = Callable[[Lineage, str], Auditor]
#: Creates the auditor of a key that all stores share; it gets every lineage.
MakeSharedAuditor = Callable[[Sequence[Lineage], str], Auditor]


@dataclass(frozen=True)
class Rule:
    """One rule of the audit. Exactly one of `auditor` and `shared_auditor` is set."""

    name: str
    #: The record types that `scatter` accepts.
    types: frozenset[str]
    #: The type of the facts; msgspec encodes and decodes them between the two Spark stages.
    facts: Any
    scatter: Callable[[Entry], Iterable[KeyedFact]]
    auditor: MakeAuditor | None = None
    #: For rules whose keys mean the same in every store.
    shared_auditor: MakeSharedAuditor | None = None
    #: Auditors also receive steps that a restore dropped.
    sees_lost: bool = False
    #: Auditors also receive steps from before the snapshot that replay starts from.
    from_beginning: bool = False
    #: The rule applies only to stores that have snapshots.
    needs_snapshot: bool = False

    @property
    def is_shared(self) -> bool:
        """True if a key means the same in every store."""
        return self.shared_auditor is not None


def no_facts(_entry: Entry) -> Iterator[KeyedFact]:
    """Scatter function of rules whose steps are not made from readable records."""
    return iter(())
