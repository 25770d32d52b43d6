"""The bus: a message ends only after it was published; only a dead letter is requeued, purged or trimmed.

The key is a message in a mailbox. A dead letter may exist without a publish, because a rejected message is dead from
the start. A message that is delivered again, because its process died or bus.db was lost, is open again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

_UNROUTED = "unrouted"
_LETTER_FACTS = ("requeued", "purged", "trimmed")
TYPES = frozenset({f"bus.{fact}" for fact in ("published", "redelivered", "handled", "failed", "dead", *_LETTER_FACTS)})


class Requeue(msgspec.Struct, array_like=True, tag="requeue"):
    """A dead letter was requeued under the id that is the key."""

    letter_id: str


class Appearance(msgspec.Struct, array_like=True, tag="appearance"):
    """The message of the key exists; `requeued_from` is the dead letter that it names."""

    requeued_from: str | None


def _by_message(entry: Entry) -> Iterator[KeyedFact]:
    fact, body = entry.type.partition(".")[2], entry.body
    if fact in ("purged", "trimmed"):
        for id_ in body["ids"]:
            yield f"{entry.ref}\x1f{id_}", fact
    else:
        yield f"{body['endpoint_hash']}\x1f{entry.ref}", fact


def _by_successor(entry: Entry) -> Iterator[KeyedFact]:
    body = entry.body
    if entry.type == "bus.requeued":
        yield body["message_id"], Requeue(entry.ref)
    else:
        yield entry.ref, Appearance(body.get("requeued_from"))


class BusMessageAuditor(Auditor):
    """Check one message in one mailbox; facts are the record types without `bus.`."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._mailbox, self._id = key.split("\x1f")
        self._is_open = False
        self._was_published = False
        self._is_dead_letter = False

    def add_step(self, step: Step) -> Iterator[Finding]:
        fact = step.fact
        if fact == "published":
            if self._is_open:
                yield self.finding("bus_published_twice", step, self._id, f"{self._mailbox} already holds it")
            self._is_open = self._was_published = True
        elif fact == "redelivered":
            if not self._was_published and self.lineage.is_complete:
                yield self.finding("bus_unknown", step, self._id, f"{fact}, but {self._mailbox} never held it")
            self._is_open = True
        elif fact in ("handled", "failed"):
            if not self._is_open and self.lineage.is_complete:
                yield self.finding("bus_unknown", step, self._id, f"{fact}, but {self._mailbox} does not hold it")
            self._is_open = False
        elif fact in _LETTER_FACTS and not self._is_dead_letter and self._is_traceable:
            detail = f"{fact}, but {self._mailbox} holds no dead letter of it"
            yield self.finding("bus_unknown", step, self._id, detail)
        if fact in ("failed", "dead"):
            self._is_open, self._is_dead_letter = False, True

    @property
    def _is_traceable(self) -> bool:
        """False in `unrouted`: dead letters of a removed endpoint move there without a record."""
        return self.lineage.is_complete and self._mailbox != _UNROUTED


class SuccessorAuditor(Auditor):
    """Check that the message as which a dead letter was requeued exists and names that letter."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        self._requeue: Step | None = None
        self._origins: set[str | None] = set()

    def add_step(self, step: Step) -> Iterator[Finding]:
        if isinstance(step.fact, Requeue):
            self._requeue = step
        else:
            self._origins.add(step.fact.requeued_from)
        return iter(())

    def finish(self) -> Iterator[Finding]:
        if self._requeue is None or not self.lineage.is_complete:
            return
        letter = self._requeue.fact.letter_id
        if not self._origins:
            detail = f"{letter} was requeued as this message, which does not exist"
            yield self.finding("chain_broken", self._requeue, self.key, detail)
        elif self._origins.isdisjoint({letter, None}):
            detail = f"{letter} was requeued as this message, which states {self._origins}"
            yield self.finding("chain_broken", self._requeue, self.key, detail)


MESSAGES = Rule("bus", TYPES, str, _by_message, BusMessageAuditor)
SUCCESSORS = Rule(
    "bus_successors",
    frozenset({"bus.requeued", "bus.published", "bus.dead"}),
    Requeue | Appearance,
    _by_successor,
    SuccessorAuditor,
)
