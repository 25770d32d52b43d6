"""Accepted events: every record has its event and every event its record, and both say the same.

The event's side comes from posthouse.pipeline.audit.event, which has checked id and signature before. Content that
has expired or was pruned proves nothing any more; then only the record is left. A direct message goes to the reader it
names and nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from posthouse.model.node import NODE_SCHEME
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Line
from posthouse.pipeline.audit.rule import Auditor, Entry, Part, Rule, Step

TYPES = frozenset({"event.accepted", "message.accepted", "confirmation.accepted"})
#: fields of a message's record that follow from the event
MESSAGE_FIELDS = ("client_message_id", "fingerprint", "destination_kind", "destination_ref", "mentions", "reply_to")


def event_key(root: str, seq: int) -> str:
    """Return the key under which a record and its event meet."""
    return f"{root}\x1f{seq}"


def _scatter(entry: Entry) -> Iterator[Part]:
    yield str(entry.seq), ["record", entry.type, entry.ref, entry.actor, entry.mesh, _told(entry)]


def _told(entry: Entry) -> dict[str, Any]:
    body = entry.body
    told: dict[str, Any] = {"size": body["size"]}
    if entry.type == "event.accepted":
        return told | {"kind": body["kind"]}
    if entry.type == "confirmation.accepted":
        return told | {"sender": body["sender"], "ids": body["ids"]}
    told |= {name: body[name] for name in MESSAGE_FIELDS if name in body}
    if body["destination_kind"] == "dm":
        told["readers"] = [*body["recipients"], *body.get("blocked", ())]
    return told


class AcceptedAuditor(Auditor):
    """One record and its event."""

    def __init__(self, line: Line, key: str) -> None:
        super().__init__(line, key)
        self._records: dict[str, Step] = {}
        self._events: dict[str, Step] = {}

    def take(self, step: Step) -> Iterator[Finding]:
        # after a restore the same seq comes again in another epoch
        (self._records if step.part[0] == "record" else self._events)[step.epoch] = step
        return iter(())

    def end(self) -> Iterator[Finding]:
        for epoch in sorted(self._records.keys() | self._events.keys()):
            record, event = self._records.get(epoch), self._events.get(epoch)
            if record is None:
                assert event is not None
                yield self.found("record_missing", event, event.part[1], "no record tells of this event")
            elif event is None:
                if record.seq <= self.line.events_through.get(epoch, 0):
                    yield self.found("event_missing", record, record.part[2], f"{record.part[1]} without its event")
            else:
                yield from self._compare(record, event)
                yield from self._direct(record)

    def _compare(self, record: Step, event: Step) -> Iterator[Finding]:
        _kind, type_, ref, actor, mesh, told = record.part
        _kind, id_, facts = event.part
        if ref != id_:
            yield self.found("event_disagrees", record, ref, f"the record names {ref}, the event is {id_}")
        if facts is None:
            return
        said = {"type": type_, "pubkey": actor, "mesh": mesh} | told
        said.pop("readers", None)
        if type_ == "confirmation.accepted":
            ids, named = set(said.pop("ids")), set(facts.pop("ids", ()))
            if not ids <= named:
                yield self.found("event_disagrees", record, ref, f"the event does not confirm {sorted(ids - named)}")
        for name in sorted(said.keys() | facts.keys()):
            if said.get(name) != facts.get(name):
                detail = f"{name} is {said.get(name)!r} in the record and {facts.get(name)!r} in the event"
                yield self.found("event_disagrees", record, ref, detail)

    def _direct(self, record: Step) -> Iterator[Finding]:
        told = record.part[5]
        if "readers" not in told:
            return
        wanted = f"{NODE_SCHEME}:{told['destination_ref']}"
        if wanted not in told["readers"]:
            yield self.found("delivery_missing", record, record.part[2], f"it was not queued for {wanted}")
        for reader in told["readers"]:
            if reader != wanted:
                yield self.found("delivery_unexpected", record, record.part[2], f"it was queued for {reader}")


RULE = Rule("accepted", TYPES, _scatter, AcceptedAuditor, sees_lost=True, from_beginning=True)
