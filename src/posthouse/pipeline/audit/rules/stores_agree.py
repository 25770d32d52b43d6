"""Stores agree: relay, outbox and inbox state the same about one message.

A message that an outbox records as done must be at the relay, provided that the relay's history is complete up to
that message and was never restored. A message in an inbox has the sender and the client id that the relay knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import NO_LINEAGE, Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

TYPES = frozenset({"message.accepted", "outbox.done", "inbox.received"})


class Sighting(msgspec.Struct, array_like=True):
    """The message of the key, as one store describes it."""

    #: relay, outbox or inbox.
    kind: str
    store: str
    mesh: str
    client_message_id: str
    #: None in an outbox.
    sender: str | None
    #: The seq of the message at the relay; None in an inbox.
    history_id: int | None


def _scatter(entry: Entry) -> Iterator[KeyedFact]:
    body, mesh, client_id = entry.body, entry.mesh, entry.body["client_message_id"]
    if entry.type == "message.accepted":
        yield entry.ref, Sighting("relay", entry.store, mesh, client_id, entry.actor, entry.seq)
    elif entry.type == "outbox.done":
        yield body["message_id"], Sighting("outbox", entry.store, mesh, client_id, None, body["history_id"])
    else:
        yield body["message_id"], Sighting("inbox", entry.store, mesh, client_id, entry.actor, None)


class CrossingAuditor(Auditor):
    """Compare what all stores state about one message."""

    def __init__(self, lineages: Sequence[Lineage], key: str) -> None:
        super().__init__(NO_LINEAGE, key)
        self._relays = [lineage for lineage in lineages if lineage.store == "relay"]
        self._at_relay: list[Sighting] = []
        self._at_daemon: list[Step] = []

    def add_step(self, step: Step) -> Iterator[Finding]:
        if step.fact.kind == "relay":
            self._at_relay.append(step.fact)
        else:
            self._at_daemon.append(step)
        return iter(())

    def finish(self) -> Iterator[Finding]:
        for step in self._at_daemon:
            if self._at_relay:
                yield from self._compare(step, step.fact)
            elif self._is_expected(step.fact):
                yield self._disagreement(step, "no relay has this message")

    def _compare(self, step: Step, seen: Sighting) -> Iterator[Finding]:
        kind, at_relay = seen.kind, self._at_relay
        first = at_relay[0]
        known = {(each.mesh, each.client_message_id) for each in at_relay}
        if (seen.mesh, seen.client_message_id) not in known:
            detail = f"the {kind} has it as {seen.client_message_id!r} in {seen.mesh}"
            yield self._disagreement(step, f"{detail}, the relay as {first.client_message_id!r}")
        if seen.sender is not None and all(each.sender != seen.sender for each in at_relay):
            yield self._disagreement(step, f"its sender is {seen.sender} in the {kind}, {first.sender} at the relay")
        if seen.history_id is not None and all(each.history_id != seen.history_id for each in at_relay):
            detail = f"its history id is {seen.history_id} in the {kind}, {first.history_id} at the relay"
            yield self._disagreement(step, detail)

    def _is_expected(self, seen: Sighting) -> bool:
        """Return True if the relays of the mesh must have the message."""
        history_id = seen.history_id
        relays = [lineage for lineage in self._relays if seen.mesh in lineage.meshes]
        if not relays or history_id is None:
            return False
        return all(each.is_complete and not each.is_restored and history_id <= each.head for each in relays)

    def _disagreement(self, step: Step, detail: str) -> Finding:
        return Finding("stores_disagree", step.fact.store, step.epoch, self.key, step.seq, detail)


RULE = Rule("crossing", TYPES, Sighting, _scatter, shared_auditor=CrossingAuditor, sees_lost=True, from_beginning=True)
