"""Accepted events: every record has its event, every event has its record, and both agree.

The event's fields come from posthouse.pipeline.audit.row_checks, which also checks its id and signature. If the
content expired or was pruned, only the record remains and the fields are not compared. A direct message is queued
for the reader it names, or for the one successor of its key, and for no other node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from posthouse.model.node import NODE_SCHEME
from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.lineage import Lineage
from posthouse.pipeline.audit.rule import Auditor, Entry, KeyedFact, Rule, Step

TYPES = frozenset({"event.accepted", "message.accepted", "confirmation.accepted"})
#: Fields of a message's record that follow from the event.
MESSAGE_FIELDS = (
    "client_message_id", "fingerprint", "destination_kind", "destination_ref", "mentions", "reply_to", "from_agent",
)  # fmt: skip
_OF_AGENTS = frozenset({"from_agent", "destination_ref", "fingerprint"})


class RecordSide(msgspec.Struct, array_like=True, tag="record"):
    """An event as its record describes it."""

    event_id: str
    #: The fields that the event must repeat, under the names that row_checks uses.
    fields: dict[str, Any]
    #: The nodes that a direct message was queued for or that block it; None for other events.
    readers: list[str] | None
    #: The reader is a successor of the key that the message names.
    is_redirected: bool = False


class EventSide(msgspec.Struct, array_like=True, tag="event"):
    """An event as its content describes it; no fields if the content is no longer available."""

    id: str
    fields: dict[str, Any] | None


def _scatter(entry: Entry) -> Iterator[KeyedFact]:
    body = entry.body
    fields = {"type": entry.type, "pubkey": entry.actor, "mesh": entry.mesh, "size": body["size"]}
    readers: list[str] | None = None
    if "mirrored_by" in body:
        fields["is_mirrored"] = True
    elif entry.type == "event.accepted":
        fields["kind"] = body["kind"]
    elif entry.type == "confirmation.accepted":
        fields |= {"sender": body["sender"], "ids": body["ids"]}
    else:
        fields |= {name: body[name] for name in MESSAGE_FIELDS if name in body}
        if body["destination_kind"] == "dm":
            readers = [*body["recipients"], *body.get("blocked", ())]
    yield str(entry.seq), RecordSide(entry.ref, fields, readers, body.get("redirected", False))


class AcceptedAuditor(Auditor):
    """Compare one record with its event; after a restore the same seq occurs again in another epoch."""

    def __init__(self, lineage: Lineage, key: str) -> None:
        super().__init__(lineage, key)
        #: By epoch.
        self._records: dict[str, Step] = {}
        self._events: dict[str, Step] = {}

    def add_step(self, step: Step) -> Iterator[Finding]:
        (self._records if isinstance(step.fact, RecordSide) else self._events)[step.epoch] = step
        return iter(())

    def finish(self) -> Iterator[Finding]:
        for epoch in sorted(self._records.keys() | self._events.keys()):
            record, event = self._records.get(epoch), self._events.get(epoch)
            if record is None:
                assert event is not None
                yield self.finding("record_missing", event, event.fact.id, "the event has no record")
            elif event is None:
                if record.seq <= self.lineage.events_through.get(epoch, 0):
                    detail = f"{record.fact.fields['type']} without its event"
                    yield self.finding("event_missing", record, record.fact.event_id, detail)
            else:
                yield from self._compare(record, event.fact)
                yield from self._check_readers(record)

    def _compare(self, step: Step, event: EventSide) -> Iterator[Finding]:
        record: RecordSide = step.fact
        ref = record.event_id
        if ref != event.id:
            yield self.finding("event_disagrees", step, ref, f"the record names {ref}, the event is {event.id}")
        if event.fields is None:
            return
        from_record, from_event = dict(record.fields), dict(event.fields)
        if from_record.pop("is_mirrored", False):  # a mirror records every kind as event.accepted
            from_record.pop("type")
            from_event = {name: from_event.get(name) for name in from_record}
        if from_record.get("type") == "confirmation.accepted":
            closed, named = set(from_record.pop("ids")), set(from_event.pop("ids", ()))
            if not closed <= named:
                detail = f"the event does not confirm {sorted(closed - named)}"
                yield self.finding("event_disagrees", step, ref, detail)
        for name in sorted((from_record.keys() | from_event.keys()) - _unrecorded(from_record, from_event)):
            recorded, signed = from_record.get(name), from_event.get(name)
            if recorded != signed:
                detail = f"{name} is {recorded!r} in the record and {signed!r} in the event"
                yield self.finding("event_disagrees", step, ref, detail)

    def _check_readers(self, step: Step) -> Iterator[Finding]:
        record: RecordSide = step.fact
        if record.readers is None or (record.is_redirected and len(record.readers) == 1):
            return
        wanted = f"{NODE_SCHEME}:{record.fields['destination_ref'].partition('/')[0]}"
        if wanted not in record.readers:
            yield self.finding("delivery_missing", step, record.event_id, f"it was not queued for {wanted}")
        for reader in record.readers:
            if reader != wanted:
                yield self.finding("delivery_unexpected", step, record.event_id, f"it was queued for {reader}")


def _unrecorded(from_record: dict[str, Any], from_event: dict[str, Any]) -> frozenset[str]:
    """Return the fields that differ because the message was accepted by a relay version without agents."""
    recorded, signed = (each.get("destination_ref", "") for each in (from_record, from_event))
    is_older = "from_agent" not in from_record and recorded == signed.partition("/")[0]
    return _OF_AGENTS if is_older and ("from_agent" in from_event or recorded != signed) else frozenset()


RULE = Rule("accepted", TYPES, RecordSide | EventSide, _scatter, AcceptedAuditor, sees_lost=True, from_beginning=True)
