"""Every rule of the audit that judges by key; a rule's place in this list is its number on the way through Spark."""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.pipeline.audit.rule import Entry, Part, Rule
from posthouse.pipeline.audit.rules import (
    accepted,
    audience,
    bus,
    confirmations,
    counters,
    crossing,
    deliveries,
    identity,
    inbox,
    locks,
    outbox,
    pinch,
    sequence,
)


def _no_parts(_entry: Entry) -> Iterator[Part]:
    """Steps of the sequence are made of every record, also of one that cannot be read."""
    return iter(())


SEQUENCE = Rule("sequence", frozenset(), _no_parts, sequence.BlockJudge, sees_lost=True, from_beginning=True)
RULES: tuple[Rule, ...] = (
    SEQUENCE,
    accepted.RULE,
    identity.ONCE,
    identity.CLAIMS,
    deliveries.RULE,
    counters.RULE,
    confirmations.RULE,
    audience.RULE,
    locks.RULE,
    outbox.ROWS,
    outbox.CLIENT_IDS,
    inbox.ROWS,
    inbox.MESSAGES,
    crossing.RULE,
    bus.MAIL,
    bus.SUCCESSORS,
    pinch.RULE,
)
NUMBERS = {rule.name: number for number, rule in enumerate(RULES)}
#: record type -> the numbers of the rules that want it
WANTED: dict[str, tuple[int, ...]] = {
    name: tuple(number for number, rule in enumerate(RULES) if name in rule.types)
    for name in {name for rule in RULES for name in rule.types}
}
