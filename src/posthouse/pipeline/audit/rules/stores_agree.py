"""Crossing from store to store: relay, outbox and inbox tell the same about one message.

What a daemon was told is done must be at the relay, if the lake has that relay's whole history up to there and no
restore has taken any of it. A message in an inbox came from the sender the relay knows, under the same id.
"""

from __future__ import annotations

from collections.abc import Iterator

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step

TYPES = frozenset({"message.accepted", "outbox.done", "inbox.received"})


def _scatter(entry: Entry) -> Iterator[Part]:
    body = entry.body
    told = [entry.store, entry.root, entry.mesh, body["client_message_id"]]
    if entry.type == "message.accepted":
        yield entry.ref, ["relay", *told, entry.actor, entry.seq]
    elif entry.type == "outbox.done":
        yield body["message_id"], ["outbox", *told, None, body["history_id"]]
    else:
        yield body["message_id"], ["inbox", *told, entry.actor, None]


class CrossingAuditor(Auditor):
    """One message, wherever it was."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._relay: list[Step] = []
        self._daemon: list[Step] = []

    def take(self, step: Step) -> Iterator[Finding]:
        (self._relay if step.part[0] == "relay" else self._daemon).append(step)
        return iter(())

    def end(self) -> Iterator[Finding]:
        for step in self._daemon:
            if self._relay:
                yield from self._compare(step)
            elif self._should_be_there(step):
                yield self._finding(step, "no relay has this message")

    def _compare(self, step: Step) -> Iterator[Finding]:
        kind, _store, _root, mesh, client_id, sender, history_id = step.part
        at_relay = [each.part for each in self._relay]
        if all((part[3], part[4]) != (mesh, client_id) for part in at_relay):
            yield self._finding(
                step, f"the {kind} knows it as {client_id!r} in {mesh}, the relay as {at_relay[0][4]!r}"
            )
        if sender is not None and all(part[5] != sender for part in at_relay):
            yield self._finding(step, f"the {kind} has it from {sender}, the relay from {at_relay[0][5]}")
        if history_id is not None and all(part[6] != history_id for part in at_relay):
            yield self._finding(step, f"the {kind} was told {history_id}, at the relay it is {at_relay[0][6]}")

    def _should_be_there(self, step: Step) -> bool:
        mesh, history_id = step.part[3], step.part[6]
        relays = [line for line in self.lines if line.store == "relay" and mesh in line.meshes]
        if not relays or history_id is None:
            return False
        return all(line.is_complete and not line.is_restored and history_id <= line.head for line in relays)

    def _finding(self, step: Step, detail: str) -> Finding:
        return Finding("stores_disagree", step.part[1], step.epoch, self.key, step.seq, detail)


RULE = Rule("crossing", TYPES, _scatter, CrossingAuditor, is_shared=True, sees_lost=True, from_beginning=True)
