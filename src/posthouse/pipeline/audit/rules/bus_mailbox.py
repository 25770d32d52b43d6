"""The bus: what ends was published, what is requeued or purged was a dead letter, and a requeued letter lives on.

The key is a message in a mailbox. A letter may be there without a publish: a refused message is one from the start. A
message whose file outlived its end is taken up again, as another publish.
"""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step

_UNROUTED = "unrouted"
TYPES = frozenset({f"bus.{fact}" for fact in ("published", "handled", "failed", "dead", "requeued", "purged")})


def _by_mail(entry: Entry) -> Iterator[Part]:
    fact, body = entry.type.partition(".")[2], entry.body
    if fact == "purged":
        for id_ in body["ids"]:
            yield f"{entry.ref}\x1f{id_}", [fact]
    else:
        yield f"{body['endpoint_hash']}\x1f{entry.ref}", [fact]


def _by_successor(entry: Entry) -> Iterator[Part]:
    body = entry.body
    if entry.type == "bus.requeued":
        yield body["message_id"], ["replaces", entry.ref]
    else:
        yield entry.ref, ["is", body.get("requeued_from")]


class MailAuditor(Auditor):
    """One message in one mailbox."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._mailbox, self._id = key.split("\x1f")
        self._is_open = False
        self._is_letter = False

    def take(self, step: Step) -> Iterator[Finding]:
        fact = step.part[0]
        if fact == "published":
            if self._is_open:
                yield self.found("bus_published_twice", step, self._id, f"it lies in {self._mailbox}")
            self._is_open = True
        elif fact in ("handled", "failed"):
            if not self._is_open and self.line.is_complete:
                yield self.found("bus_unknown", step, self._id, f"{fact}, but it does not lie in {self._mailbox}")
            self._is_open = False
        elif fact in ("requeued", "purged") and not self._is_letter and self._can_tell:
            yield self.found("bus_unknown", step, self._id, f"{fact}, but no letter of it lies in {self._mailbox}")
        if fact in ("failed", "dead"):
            self._is_open, self._is_letter = False, True

    @property
    def _can_tell(self) -> bool:
        """Letters of endpoints that were removed have moved to unrouted without a record."""
        return self.line.is_complete and self._mailbox != _UNROUTED


class SuccessorAuditor(Auditor):
    """One message that a dead letter was requeued as."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._replaces: Step | None = None
        self._origins: set[str | None] = set()

    def take(self, step: Step) -> Iterator[Finding]:
        if step.part[0] == "is":
            self._origins.add(step.part[1])
        else:
            self._replaces = step
        return iter(())

    def end(self) -> Iterator[Finding]:
        if self._replaces is None or not self.line.is_complete:
            return
        letter = self._replaces.part[1]
        if not self._origins:
            yield self.found(
                "chain_broken", self._replaces, self.key, f"{letter} was requeued as it, and it is not there"
            )
        elif self._origins.isdisjoint({letter, None}):
            yield self.found(
                "chain_broken", self._replaces, self.key, f"{letter} was requeued as it, it says {self._origins}"
            )


MAIL = Rule("bus", TYPES, _by_mail, MailAuditor)
SUCCESSORS = Rule(
    "bus_successors", frozenset({"bus.requeued", "bus.published", "bus.dead"}), _by_successor, SuccessorAuditor
)
