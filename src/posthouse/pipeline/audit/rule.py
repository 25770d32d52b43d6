"""What a rule of the audit is: it takes records apart by key, and audits the steps of one key in order.

Rules are pure Python and know neither Spark nor a database. Spark spreads the keys over its workers; a small history
runs the same rules in one process. Rows that a restore has lost are passed to an auditor only if its rule asks for
them: they happened, but nothing follows from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line

#: key and what a judge has to know; plain JSON values
Part = tuple[str, list[Any]]


class Entry(NamedTuple):
    """A record on its way to the rules."""

    root: str
    store: str
    seq: int
    at_ns: int
    type: str
    mesh: str
    actor: str
    ref: str
    body: dict[str, Any]


class Step(NamedTuple):
    """One part of a record, where its key is judged."""

    epoch: str
    depth: int
    seq: int
    is_lost: bool
    at_ns: int
    #: its kind first
    part: list[Any]


class Auditor:
    """Judges the steps of one key; a subclass keeps what it has to remember."""

    def __init__(self, line: Line, key: str) -> None:
        self.line = line
        self.key = key
        #: every line there is, for rules whose keys hold for all stores together
        self.lines: Sequence[Line] = (line,)

    def take(self, step: Step) -> Iterator[Finding]:
        """Take the next step."""
        raise NotImplementedError

    def end(self) -> Iterator[Finding]:
        """Say what only the end of history tells."""
        return iter(())

    def found(self, code: str, step: Step, ref: str, detail: str) -> Finding:
        """Return a finding at a step."""
        return Finding(code, self.line.store, step.epoch, ref, step.seq, detail)


@dataclass(frozen=True)
class Rule:
    """One rule of the audit."""

    name: str
    types: frozenset[str]
    scatter: Callable[[Entry], Iterable[Part]]
    judge: Callable[[Line, str], Auditor]
    #: whether the key holds for all stores together
    is_shared: bool = False
    #: whether judges want to see what a restore has lost
    sees_lost: bool = False
    #: whether judges want to see what lies before the snapshot that replay starts from
    from_beginning: bool = False
    #: whether there is something to judge only where snapshots are
    needs_snapshot: bool = False
